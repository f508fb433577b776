"""Dense layers first, then experts chosen within groups, beside some that all tokens share."""
