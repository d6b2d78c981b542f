"""The text of an error that a client gets: the one place from which texts of errors go into answers."""

from repoagent.errors import RepoAgentError
from repoagent.public_text import public_text


def client_text(error: RepoAgentError) -> str:
    """The message without the paths of private places of this machine."""
    return public_text(error.message)
