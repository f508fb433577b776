"""What a GGUF file says: its header, and the config, tensors and tokenizer that follow from it."""
