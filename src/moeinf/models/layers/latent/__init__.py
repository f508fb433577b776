"""Multi-head latent attention, to all positions or to a few."""
