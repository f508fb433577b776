"""`moeinf trace`: its verbs, and what they print and draw."""
