"""What is computed: families of models, the layers that they share, and how layers are computed on each device."""
