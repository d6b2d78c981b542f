"""The model repositories of a server, and what changed in them."""
