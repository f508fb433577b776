"""Attention with keys and values of heads: to all positions, or to blocks that an indexer chooses."""
