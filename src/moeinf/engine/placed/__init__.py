"""Models whose weights lie in the files of another program, or whose layers differ in their formats."""
