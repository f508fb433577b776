"""Tool calls of an answer, told from its text while they stream: one file a syntax, chosen by the chat template."""
