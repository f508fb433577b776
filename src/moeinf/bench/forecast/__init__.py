"""The verbs that tell what this machine gives, and what a model will take of it."""
