"""Layers that keep a state of fixed size of a sequence, instead of something of each of its tokens."""
