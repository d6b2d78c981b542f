"""What HTTP and gRPC share: the core they call, pools, limits, delivery of answers."""
