"""What a name serves and how that changes: loads, unloads, reloads, loads on demand."""
