"""Where weights lie: the store's format, its library, and the way from a checkpoint into it."""
