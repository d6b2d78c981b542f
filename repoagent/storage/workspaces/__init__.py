"""Private directories, on disk or in memory, that are always removed."""
