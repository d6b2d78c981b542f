"""The guarded front ends of the tests of access, for those who are not to get in."""

from server_stub.tests.access.conftest import follow, guarded, issuer, path
from server_stub.tests.conftest import core

__all__ = ["core", "follow", "guarded", "issuer", "path"]
