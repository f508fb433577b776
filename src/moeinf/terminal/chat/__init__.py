"""The chat on a terminal: reading messages, and the /commands."""
