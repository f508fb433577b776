"""Experts in the memory of a GPU, behind it those in host memory, behind these the disk."""
