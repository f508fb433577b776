"""What does a client see? OpenAI's, ollama's and Anthropic's HTTP APIs, and a page, over one model at a time."""
