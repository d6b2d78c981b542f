"""The guarded front ends of the tests of access, for those who are not to get in."""

from server_stub.tests.access.conftest import follow, guarded, issuer, path

__all__ = ["follow", "guarded", "issuer", "path"]
