"""LoRA adapters, merged into the weights of a model while it is pulled."""
