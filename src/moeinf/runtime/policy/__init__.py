"""Which expert comes next and which one leaves: numbers in, decisions out; no clock, no file, no thread."""
