"""The forms in which a known model is published, of which a machine takes one."""
