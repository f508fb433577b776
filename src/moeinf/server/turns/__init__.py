"""Whose turn is it? Requests in a queue, and the one thread that answers them."""
