"""Names and trees: opening beneath a root, removing, syncing."""
