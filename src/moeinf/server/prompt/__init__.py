"""What does a request ask of a model? Messages, tools and thinking, as chat templates take them."""
