"""Metrics for Prometheus: Triton's for inference, and ours for what agents do."""
