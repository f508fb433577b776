"""A stored model put together so that it generates."""
