"""The classes of the interface: enumerations, requests, results, configuration, statistics, KV-cache events."""
