"""Biases of scores by distance instead of positions, and short convolutions on keys, values and what layers add."""
