"""A model repository agent that converts a model into the form that its server runs fastest."""
