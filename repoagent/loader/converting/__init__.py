"""Converting models: finding converters, running them in processes of their own, keeping and describing results."""
