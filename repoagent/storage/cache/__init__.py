"""Results that are kept across restarts, by the digest of what they were made from."""
