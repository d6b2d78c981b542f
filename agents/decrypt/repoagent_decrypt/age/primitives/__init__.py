"""What the formats of age are written in: base64 without padding, and bech32."""
