"""gRPC over HTTP/2 of our own: a state machine without sockets, the calls on it, and the event loop's side of both."""
