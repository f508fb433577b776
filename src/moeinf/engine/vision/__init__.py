"""Pictures in prompts: from the bytes of a file to tokens, and the memory that this takes."""
