"""Model repositories on any fsspec filesystem: addresses, listings, versions, fingerprints."""
