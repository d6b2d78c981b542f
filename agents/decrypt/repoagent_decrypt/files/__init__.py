"""Files, whatever their format: new ones that are complete or absent, and many threads at work on one."""
