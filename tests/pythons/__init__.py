"""The first minutes of a user, and the tests that need no torch, under every Python that moeinf promises."""
