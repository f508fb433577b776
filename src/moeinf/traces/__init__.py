"""Recorded routing: its files, what is recorded live, and what a recording tells."""
