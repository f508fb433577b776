"""Who gets in, and for how long: what stands between a connection and the routes."""
