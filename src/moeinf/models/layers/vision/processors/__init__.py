"""Image processors that single families have; those of several lie in image_processor.py."""
