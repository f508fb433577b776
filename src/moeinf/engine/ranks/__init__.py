"""A model that several machines compute together: rank 0, and the workers."""
