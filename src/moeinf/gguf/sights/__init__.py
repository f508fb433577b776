"""How GGUF files of single architectures see: one file a kind of tower."""
