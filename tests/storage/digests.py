"""Digests in the form that a download demands, made without the product."""

import hashlib


def digest_of(content: bytes, algorithm: str = "sha256") -> str:
    """``ALGORITHM:HEX``; that of git has the kind and the size of the content before it."""
    if algorithm == "git-sha1":
        whole = b"blob %d\0" % len(content) + content
        return f"git-sha1:{hashlib.sha1(whole, usedforsecurity=False).hexdigest()}"
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
