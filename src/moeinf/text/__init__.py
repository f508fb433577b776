"""From text to tokens and back: tokenizer, chat template, thoughts; what may hang runs in a process of its own."""
