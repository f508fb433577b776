"""Tokens that are guessed at, so that a step takes several of an answer."""
