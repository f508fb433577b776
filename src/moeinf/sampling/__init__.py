"""Chooses the next token: the generation loop, the sampler and the beam search."""
