"""Latent attention, and blocks of DeepSeek's kind."""
