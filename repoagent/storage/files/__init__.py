"""The files of one model, as backends see them."""
