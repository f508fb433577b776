"""How far answers may differ that need fewer experts, measured on a text."""
