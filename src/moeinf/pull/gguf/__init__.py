"""GGUF files, on this machine or on the Hub, as models of the store that stay where they are."""
