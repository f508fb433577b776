"""The way of a request through an open model."""
