"""Stores weights: the format on disk, the library of models, and what checks them."""
