"""Converters of decoder folders: a graph, its configuration, and the tokenizer beside them."""
