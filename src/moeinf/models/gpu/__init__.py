"""How layers are computed on a GPU."""
