"""benchmarks/gpu.sh on a machine without a GPU: the same script and programs, over a card that is emulated."""
