"""Coding agents that a command starts on a model here."""
