"""Attention to blocks of tokens that an indexer chooses."""
