"""The experts that one memory holds: the table of slots, how experts come into it, and its counters."""
