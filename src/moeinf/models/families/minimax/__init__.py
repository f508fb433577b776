"""Sigmoid routing with a correction bias in every layer; in M3 attention to chosen blocks of tokens."""
