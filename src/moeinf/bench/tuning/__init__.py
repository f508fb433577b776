"""Training of a network that decides what is evicted, from a model's recorded routing."""
