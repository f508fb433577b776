"""What a model kept of earlier prompts, so that a prompt that begins as one of them pays only for what is new."""
