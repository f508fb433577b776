"""The GPU's kernels, compiled by every Triton that comes with a torch that moeinf takes, for every card it promises."""
