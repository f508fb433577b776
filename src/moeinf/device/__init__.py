"""What a GPU computes and copies: kernels and their torch twins, captured programs, memory for expert slots."""
