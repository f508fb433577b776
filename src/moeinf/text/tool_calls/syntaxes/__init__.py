"""The syntaxes, one a file."""
