"""The cards that a model runs on: how they share its experts and layers, and what one holds."""
