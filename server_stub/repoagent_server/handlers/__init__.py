"""What a server does on request, without any protocol: HTTP and gRPC only translate to and from these."""
