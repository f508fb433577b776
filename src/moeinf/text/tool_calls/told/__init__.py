"""What a chat template is told of tools, their calls and their results."""
