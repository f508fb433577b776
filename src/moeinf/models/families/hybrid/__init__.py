"""Families that mix attention with layers that keep a state of fixed size: Mamba and short convolutions."""
