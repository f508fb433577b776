"""A running server, as the commands of the terminal talk to it."""
