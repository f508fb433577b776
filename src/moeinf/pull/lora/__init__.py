"""LoRA adapters of PEFT, merged into the weights of a checkpoint while it is pulled."""
