"""Softmax over all experts, some with a shared one behind a gate; Gated DeltaNet in some."""
