"""The parameters of the agent, checked."""

from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError, Parameters

_ONCE: Final = ("url", "into", "manifest", "token", "username", "password", "tracking", "floating")
PARAMETERS: Final = (*_ONCE, "include", "file", "digest")
_LONGEST: Final = 4096
"""Characters of a value: what is made of one takes more time than its length."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to fetch, what it must be, and where it goes. ``token`` and the like are references, never secrets."""

    url: str
    into: str = "1"
    include: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Remote path -> path in the model, for files that go elsewhere than into ``into``."""
    digests: tuple[tuple[str, str], ...] = ()
    manifest: tuple[str, str] | None = None
    token: str = ""
    username: str = ""
    password: str = ""
    tracking: str = ""
    floating: bool = False


def parse_parameters(parameters: Parameters) -> Options:
    """The options in ``parameters``.

    Raises:
        InvalidArgumentError: a parameter is unknown, is given twice, or has a value that is not allowed.
    """
    parameters.check(PARAMETERS, once=_ONCE)
    for name, value in parameters.items():
        if len(value) > _LONGEST:
            raise InvalidArgumentError(f"parameter '{name}' has {len(value)} characters, more than {_LONGEST}")
    url = parameters.get("url", "")
    if not url:
        raise InvalidArgumentError(
            "parameter 'url' is missing: give the place of the model, such as hf://OWNER/NAME@COMMIT"
        )
    into = parameters.get("into", "1")
    manifest = parameters.get("manifest")
    return Options(
        url=url,
        into="" if into == "." else plain_path(into, "into"),
        include=tuple(parameters.get_all("include")),
        files=tuple(_pair(text, "file", ":") for text in parameters.get_all("file")),
        digests=tuple(_pair(text, "digest", "=") for text in parameters.get_all("digest")),
        manifest=None if manifest is None else _pair(manifest, "manifest", "="),
        token=parameters.get("token", ""),
        username=parameters.get("username", ""),
        password=parameters.get("password", ""),
        tracking=parameters.get("tracking", ""),
        floating=_boolean(parameters.get("floating", "false")),
    )


def plain_path(path: str, what: str) -> str:
    """``path`` if it is a plain relative one.

    Raises:
        InvalidArgumentError: it is not; ``what`` names the parameter.
    """
    if any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
        raise InvalidArgumentError(f"parameter '{what}' has {path[:200]!r}; expected a plain relative path")
    return path


def _pair(text: str, what: str, between: str) -> tuple[str, str]:
    left, found, right = text.rpartition(between)
    if what == "digest" or what == "manifest":
        left, found, right = text.partition(between)
    if not found or not left or not right:
        form = "REMOTE:LOCAL" if what == "file" else "PATH=sha256:HEX"
        raise InvalidArgumentError(f"parameter '{what}' is {text[:200]!r}, expected {form}")
    plain_path(left, what)
    return left, plain_path(right, what) if what == "file" else right


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise InvalidArgumentError(f"parameter 'floating' is {text!r}, expected 'true' or 'false'")
    return text == "true"
