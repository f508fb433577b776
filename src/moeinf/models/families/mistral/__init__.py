"""DeepSeek's latent attention under softmax routing."""
