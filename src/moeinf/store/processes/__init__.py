"""What processes that share a store do to each other: locks, and what those that were killed have left."""
