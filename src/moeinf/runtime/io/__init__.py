"""Reads of experts from files: the native reader, its twin in Python, and memory for what is read."""
