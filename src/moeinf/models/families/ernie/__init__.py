"""Softmax routing with a correction bias, rotary pairs side by side."""
