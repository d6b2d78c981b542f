"""Traces of requests: settings, spans, files."""
