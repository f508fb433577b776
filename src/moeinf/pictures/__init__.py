"""Picture files: decoded in a process of their own, which can be killed."""
