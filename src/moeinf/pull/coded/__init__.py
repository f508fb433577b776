"""Matrices that a checkpoint has as codes and scales: how each published scheme makes weights of them."""
