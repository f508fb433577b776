"""What a model takes of memory, and how that is divided."""
