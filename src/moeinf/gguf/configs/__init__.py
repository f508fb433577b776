"""What a GGUF file says of its architecture, put as the config.json of the family; a file for each kind."""
