"""age v1 (https://age-encryption.org/v1) over ``cryptography``: strict, threaded, nothing of the project imported.

Read with :class:`~.reader.AgeReader` (any stream), :class:`~.reader.SeekableAgeReader` (random access) or
:func:`~.files.decrypt_file` (file to file, fastest); write with :class:`~.writer.AgeWriter` or
:func:`~.files.encrypt_file`; change recipients with :func:`~.writer.rewrap_file`. Keys are parsed in :mod:`~.keys`.
"""
