"""How single families see: what their towers are made of."""
