"""How families see: what becomes of a picture's pixels on their way to tokens of the language model."""
