"""Families of Google's Gemma."""
