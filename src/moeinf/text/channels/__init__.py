"""Answers that are written in channels, of which each tag is several tokens."""
