"""Runners: what stands between the engine and a model."""
