"""Tink's streaming AEAD with AES-GCM and HKDF: keysets, segments, and whole files with many threads.

Source of the format: Tink's documentation of "AES-GCM-HKDF Streaming AEAD" and its ``aes_gcm_hkdf_streaming.proto``.
"""
