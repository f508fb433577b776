"""How other recorders write routing, each in a file of its own."""
