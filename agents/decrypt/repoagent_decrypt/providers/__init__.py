"""Key providers by URI scheme: each module has ``fetch(uri) -> bytes``. The README has the forms of the references.

They raise ``InvalidArgumentError`` for a reference that makes no sense, ``NotFoundError`` if it leads nowhere,
``UnavailableError`` if the service refuses or does not answer, and ``UnsupportedError`` if a package is missing.
Messages hold the reference's scheme and path, never a token, a ciphertext or a key.
"""
