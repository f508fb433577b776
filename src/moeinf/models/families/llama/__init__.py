"""Families of Meta's Llama."""
