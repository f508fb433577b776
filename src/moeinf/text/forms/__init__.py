"""Answers that have to be of a form: JSON of a schema, or text of another language."""
