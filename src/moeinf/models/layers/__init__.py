"""What families are made of: the protocol of layers, decoders, attention, rotation, caches and routers."""
