"""How fast this machine decodes: the rates that are known of it, and what follows from them for a model."""
