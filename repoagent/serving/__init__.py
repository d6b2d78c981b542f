"""The serving core: it loads, runs and unloads models, and knows nothing of HTTP."""
