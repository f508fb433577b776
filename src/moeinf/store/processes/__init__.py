"""What processes that share a store do to each other: locks, work folders, and what the killed ones have left."""
