"""A model repository agent that fetches models from hubs, registries, buckets and web servers."""
