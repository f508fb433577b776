"""What does a browser show? The page for a chat, in static/, and what it is told of the machine at work."""
