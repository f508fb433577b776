"""Checksums of what is stored: those that a run needs, and how all are computed at once."""
