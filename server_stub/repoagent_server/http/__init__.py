"""KServe v2 and Triton's extensions over HTTP/1.1. Nothing here decides anything: that is what the handlers are for."""
