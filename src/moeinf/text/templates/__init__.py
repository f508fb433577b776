"""Chat templates: where a checkpoint keeps them, what they read, and how they are rendered in a sandbox."""
