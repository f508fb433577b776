"""OpenAI's Responses API: what a request's items say, and answers told as items."""
