"""Statistics, latencies and metrics of models."""
