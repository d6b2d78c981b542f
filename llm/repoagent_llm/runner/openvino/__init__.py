"""Decoders on OpenVINO, with paged attention."""
