"""The syntaxes, one a file, and the heads of one."""
