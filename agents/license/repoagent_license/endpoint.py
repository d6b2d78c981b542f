"""Asking an HTTP endpoint whether a model may be loaded.

The request is ``POST URL`` with ``{"model": NAME}``, and ``Authorization: Bearer TOKEN`` if there is a token. The
answer has status 200 and ``{"authorized": true, "until": "2027-01-31T00:00:00Z"}`` (``until`` may be missing) or
``{"authorized": false, "reason": "..."}``. Whatever else happens is a refusal.
"""

import http.client
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Final

from repoagent.api import InvalidArgumentError, UnavailableError, read_json
from repoagent_license.terms import Grant, parse_time

_LARGEST: Final = 1 << 16
_LONGEST_REASON: Final = 1000
_BY: Final = "the authorization by the endpoint"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another server than the one that the operator named is not asked."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def ask(url: str, model: str, *, token: str | None = None, timeout: float) -> Grant:
    """Ask ``url`` about ``model``; ``timeout`` is in seconds, for connecting and for the answer as a whole.

    Raises:
        UnavailableError: no answer, or one that cannot be used.
        InvalidArgumentError: the endpoint refuses.
    """
    answers: queue.SimpleQueue[Grant | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(_ask(url, model, token, timeout))
        except Exception as error:  # whatever it is, the caller raises it
            answers.put(error)

    # On a thread of its own: a limit of the socket's starts again with every byte, also in the middle of a header.
    threading.Thread(target=run, name="license-endpoint", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        raise UnavailableError("the endpoint did not answer: timed out") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ask(url: str, model: str, token: str | None, timeout: float) -> Grant:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    # Only https, or http to this machine: the options have been checked.
    request = urllib.request.Request(  # noqa: S310
        url, json.dumps({"model": model}).encode(), headers
    )
    deadline = time.monotonic() + timeout
    try:
        with _opener(url).open(request, timeout=timeout) as reply:
            if reply.status != http.HTTPStatus.OK:
                raise UnavailableError(f"the endpoint answered with status {reply.status}")
            body = _read(reply, deadline)
    except urllib.error.HTTPError as error:
        with error:
            raise UnavailableError(f"the endpoint answered with status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"the endpoint did not answer: {_reason(error)}") from None
    return _grant(body)


def _opener(url: str) -> urllib.request.OpenerDirector:
    if url.startswith("https:"):
        return urllib.request.build_opener(_NoRedirect)
    # This machine needs no proxy, and one would read the token.
    return urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def _read(reply: http.client.HTTPResponse, deadline: float) -> bytes:
    body = b""
    while block := reply.read1(_LARGEST):
        body += block
        if len(body) > _LARGEST:
            raise UnavailableError(f"the endpoint's answer is larger than {_LARGEST} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    return body


def _grant(body: bytes) -> Grant:
    try:
        answer = read_json(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("authorized"), bool):
        raise UnavailableError("the endpoint's answer cannot be used; expected JSON with 'authorized': true or false")
    if not answer["authorized"]:
        reason = str(answer.get("reason") or "the endpoint gave no reason")
        raise InvalidArgumentError(f"not authorized: {reason[:_LONGEST_REASON]}")
    until = answer.get("until")
    return Grant(_BY, None if until is None else parse_time(until, "'until' in the endpoint's answer"))


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) or type(cause).__name__
