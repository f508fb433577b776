"""What a GPU computes and copies: probing, streams and graphs, memory for experts, and kernels."""
