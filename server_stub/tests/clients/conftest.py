"""The served models, for clients of every kind."""

from server_stub.tests.served import served

__all__ = ["served"]
