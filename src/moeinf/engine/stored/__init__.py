"""What is known of a stored model that is not open."""
