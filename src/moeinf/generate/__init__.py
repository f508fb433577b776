"""From text to tokens to text: tokenizer, chat template, sampling and the loop that joins them to a model."""
