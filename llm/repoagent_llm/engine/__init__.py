"""The engine: batches requests iteration by iteration over one runner."""
