"""Handing the result of a chain to another server: in a directory, or to a command that lives as long as the model."""
