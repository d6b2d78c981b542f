"""The gRPC front end: Triton's ``inference.GRPCInferenceService``, with health and reflection."""
