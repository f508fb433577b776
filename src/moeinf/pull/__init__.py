"""From a checkpoint to a stored model: where it comes from, what is checked, converted and published."""
