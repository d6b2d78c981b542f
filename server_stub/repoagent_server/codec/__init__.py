"""Bodies of the KServe v2 protocol over HTTP, with the binary tensor extension: bytes to requests, and back."""
