"""Load a model only while somebody authorizes it: an HTTP endpoint, or a signed licence."""

from repoagent_authorize.agent import AuthorizeAgent

__all__ = ["AuthorizeAgent"]
