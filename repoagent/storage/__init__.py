"""Where models come from and where their files are kept: repositories, workspaces, the cache, keys by reference."""
