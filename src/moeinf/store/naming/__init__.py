"""What models are called: names, references to the Hub, short names, and the files of names."""
