"""What a person sees of stored models, and does with them."""
