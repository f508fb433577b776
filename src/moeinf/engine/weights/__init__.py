"""The weights of a stored model: how they are read, and in which form they are computed with."""
