"""Hunyuan: three generations, of common and of latent attention."""
