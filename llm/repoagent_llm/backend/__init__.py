"""Language models: a decoder folder and its tokenizer, served by the executor."""
