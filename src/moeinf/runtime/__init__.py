"""Where an expert is, and when it moves."""
