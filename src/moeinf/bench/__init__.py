"""How fast it is, and why."""
