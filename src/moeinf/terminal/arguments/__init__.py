"""What the words of a command line mean: flags, checked values, and what is said of a wrong use."""
