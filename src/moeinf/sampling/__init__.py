"""Which token comes next: the generation loop, the sampler and the beam search."""
