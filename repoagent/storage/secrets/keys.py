"""Secrets by reference: ``env:NAME``, ``file:/path``, ``exec:command``, and the schemes that plug-ins bring.

No message here holds a key, or anything that could be one: what is not a reference may be the key itself.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from repoagent.beneath.opening import read_small_file
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.programs import mark_secret, run_program
from repoagent.public_text import unusable_key_file

KeyProvider = Callable[[str], bytes]
"""Takes the whole reference, scheme included, and returns the secret as it is stored, a final newline included.

Raises ``NotFoundError`` if it leads nowhere; no message may hold the secret.
"""


_REFERENCE: Final = re.compile(r"([a-z][a-z0-9+.-]*):(.+)", re.DOTALL)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST: Final = DEFAULT_LIMITS.key_file_bytes
_EXEC_SECONDS: Final = 30.0


def builtin_providers(*, commands: bool = False, largest: int = _LARGEST) -> dict[str, KeyProvider]:
    """The providers that need no plug-in, by scheme; no file or program gives more than ``largest`` bytes.

    Without ``commands``, ``exec:`` is refused: a writer of references could run any program as the server.
    """
    run = _CommandProvider(largest) if commands else _refuse_command
    return {"env": _from_environment, "file": partial(_from_file, limit=largest), "exec": run}


def _never() -> bool:
    return False


def resolve_key(uri: str, providers: Mapping[str, KeyProvider], cancelled: Callable[[], bool] = _never) -> bytes:
    """Return the secret that ``uri`` refers to. ``cancelled`` becomes true when no one waits for it any more.

    Raises:
        InvalidArgumentError: not a reference with a known scheme. The message does not repeat it.
        NotFoundError: it leads nowhere.
        UnavailableError: the provider failed.
        CancelledError: no one waits, and the program that was to give the key has been killed.
    """
    match = _REFERENCE.fullmatch(uri)
    provider = providers.get(match[1]) if match else None
    if match is None or provider is None:
        schemes = ", ".join(f"{scheme}:" for scheme in sorted(providers))
        raise InvalidArgumentError(
            f"a key must be given as a reference that starts with one of {schemes}; what was given is not one (it is "
            "not repeated here, for it may be the key itself, which must never be a parameter)"
        )
    try:
        return provider.resolve(uri, cancelled) if isinstance(provider, _CommandProvider) else provider(uri)
    except RepoAgentError:
        raise
    except Exception as error:
        # The text of a plug-in's error is not trusted to be free of secrets, and neither is its traceback.
        raise UnavailableError(f"the key provider for {match[1]}: failed with {type(error).__name__}") from None


def _from_environment(uri: str) -> bytes:
    name = uri.partition(":")[2]
    if not _VARIABLE.fullmatch(name):
        raise InvalidArgumentError("the reference env:... does not name an environment variable; expected env:NAME")
    mark_secret(name)
    value = os.environb.get(name.encode())
    if value is None:
        raise NotFoundError(f"the environment variable of the key reference env:{name} is not set")
    return value


def _from_file(uri: str, *, limit: int) -> bytes:
    rest = uri.partition(":")[2]
    path = rest[2:] if rest.startswith("///") else rest
    if not path.startswith("/") or path.startswith("//") or "\0" in path:
        raise InvalidArgumentError("the reference file:... has no absolute path; expected file:/path")
    try:
        return read_small_file(path, limit=limit)
    except (OSError, InvalidArgumentError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotFoundError(unusable_key_file(f"file:{path}", reason)) from None


def _refuse_command(_uri: str) -> bytes:
    raise InvalidArgumentError(
        "a key reference exec:... lets the writer of the model's configuration run a program as the server; it is "
        "refused unless the operator allows it (--allow-exec-keys)"
    )


class _CommandProvider:
    """``exec:``, the output of a program, which is killed when no one waits for the key any more."""

    def __init__(self, largest: int) -> None:
        self._largest = largest

    def __call__(self, uri: str) -> bytes:
        return self.resolve(uri, _never)

    def resolve(self, uri: str, cancelled: Callable[[], bool]) -> bytes:
        argv = _split(uri.partition(":")[2])
        # The arguments may hold a credential of their own: only the program is named.
        what = f"the program '{argv[0]}' of the key reference exec:"
        try:
            done = run_program(
                argv, timeout=_EXEC_SECONDS, cancelled=cancelled, capture_errors=False, most=self._largest
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{what} did not end within {_EXEC_SECONDS:.0f} seconds, and was killed") from None
        except FileNotFoundError:
            raise NotFoundError(f"{what} does not exist") from None
        except OSError as error:
            raise UnavailableError(f"{what} cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            raise InternalError(f"{what} ended with status {done.returncode}; its stderr is in the server's")
        return done.stdout


def _split(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError:
        argv = []
    if not argv or "\0" in command:
        raise InvalidArgumentError("the reference exec:... is not a command line; expected exec:program argument ...")
    return argv
