"""One version of a model: made from its files, checked, warmed up, served."""
