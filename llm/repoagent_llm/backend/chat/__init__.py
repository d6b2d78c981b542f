"""Conversations to prompts: a model's chat template, rendered in a process of its own."""
