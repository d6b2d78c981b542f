"""TLS for both front ends: files that are read again, handshakes with limits, and who a client's certificate names."""
