"""Experts of stored models on other disks: which there are, how they are made, and whether they are whole."""
