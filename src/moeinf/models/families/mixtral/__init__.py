"""Experts in every layer, mostly by softmax, with nothing beside them."""
