"""Many requests from a file: read, put in order, answered side by side, and written so that a kill loses none."""
