"""The architectures, one file each, named after the model_type of config.json."""
