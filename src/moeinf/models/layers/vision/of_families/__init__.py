"""How single families see: what their towers are made of, and image processors that no other family has."""
