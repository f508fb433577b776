"""Weights in the files of other programs, where they lie."""
