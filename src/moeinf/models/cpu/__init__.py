"""How layers are computed on the CPU."""
