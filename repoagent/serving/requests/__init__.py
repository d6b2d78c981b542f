"""Requests, responses, tensors, and the checks that every request passes."""
