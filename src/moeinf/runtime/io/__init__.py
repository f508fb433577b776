"""Reads experts from files: the native reader, its reference implementation, and the memory that is read into."""
