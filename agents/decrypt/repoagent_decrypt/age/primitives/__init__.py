"""What the formats of age are written in: base64 without padding, bech32, and the errors of reading them."""
