"""What executes a model; one package per backend."""
