"""A checkpoint becomes a store: what is planned, moved, converted, noted and sealed."""
