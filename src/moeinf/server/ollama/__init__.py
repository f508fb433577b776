"""ollama's API: chat, generate, and the models of the store."""
