"""Makes a stored model of a checkpoint: finds, downloads, checks, converts and publishes it."""
