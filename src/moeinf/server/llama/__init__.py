"""Small routes of llama.cpp's server: tokens of a text, the text of a chat, and what the server does."""
