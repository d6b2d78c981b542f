"""A model repository agent that fetches models from hubs, registries, buckets and web servers."""

from repoagent_fetch.agent import FetchAgent

__all__ = ["FetchAgent"]
