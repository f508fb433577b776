"""How several machines compute the experts of one model: a star of expert servers (docs/contributing/scale-out.md)."""
