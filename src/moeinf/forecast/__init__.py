"""What a model will take on this machine, and how fast it will be, before it is loaded or fetched."""
