"""The choice among the forms in which a model is published, as a person sees it."""
