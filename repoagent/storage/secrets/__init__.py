"""Keys by reference."""
