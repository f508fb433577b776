"""Kimi: DeepSeek-V3 under other names, and linear attention beside latent attention."""
