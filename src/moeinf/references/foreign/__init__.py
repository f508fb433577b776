"""Models of other programs on this disk: they are only read, never locked or changed."""
