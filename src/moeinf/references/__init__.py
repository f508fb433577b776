"""What a name, a path or a repository means, and how a model of it gets into the store."""
