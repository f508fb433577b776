"""Coding agents, installed and asked to edit a file."""
