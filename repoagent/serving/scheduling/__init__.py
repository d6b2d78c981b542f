"""Schedulers that do more than one request after the other: dynamic batching, sequence batching, the response cache."""
