"""What an answer to a client may reveal: no path of a private place of this machine, and no address of a store.

Code that makes or opens such a place names it with :func:`hide` or :func:`hide_url`; the front ends send no text that
did not pass through :func:`public_text`. Logs keep the whole text. Beneath a place the path in the model is left,
which is what a client knows: ``/dev/shm/repoagent-0/17-ab/3/1-decrypt/m/1/model.onnx`` becomes ``1/model.onnx``.
"""

import logging
import os
import re
import threading
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

_BEFORE: Final = r"(?<![^\s'\"`(\[<=:,])"
_TAIL: Final = r"(?P<tail>(?:/[^\s'\"`]*)?)(?![\w.-])"
_HELD: Final = re.compile(r"/proc/self/fd/\d+")
_ALL: Final = 1 << 10
_ENDINGS: Final = ".,:;)]>"

_places: dict[str, tuple[re.Pattern[str], str, int]] = {}
_lock: Final = threading.Lock()


def hide(place: Path | str, what: str, *, depth: int = 0) -> None:
    """Let no answer have the path of ``place``.

    Args:
        place: A directory; it need not exist yet.
        what: What stands in its place: "workspace" becomes ``<workspace>``.
        depth: How many directories below it are private names as well.
    """
    for path in {str(place), os.path.abspath(place), os.path.realpath(place)}:
        if path not in ("/", ".", ""):
            _hide(path, what, depth)


def hide_url(url: str, what: str) -> None:
    """Let no answer have ``url``, the address of its server, or the place on that server.

    What a store's package reports of a failure may name any of them. A bucket alone may be any word, and stays.
    """
    place = url.rpartition("://")[2]
    server, _, beneath = place.partition("/")
    _hide(url, what, 0)
    if "." in server or ":" in server:
        place = beneath
        for spelling in (server, f"http://{server}", f"https://{server}"):
            _hide(spelling, what, _ALL)
    if "/" in place:
        _hide(place, what, 0)


def _hide(text: str, what: str, depth: int) -> None:
    with _lock:
        if text not in _places:
            _places[text] = (re.compile(_BEFORE + re.escape(text.rstrip("/")) + _TAIL), f"<{what}>", depth)


def public_text(text: str) -> str:
    """``text`` without the paths of private places, and as every protocol can carry it."""
    for path, (pattern, what, depth) in sorted(_places.copy().items(), reverse=True):
        if path in text:
            text = pattern.sub(lambda match, what=what, depth=depth: _public(match, what, depth), text)  # type: ignore[misc]
    return writable(_HELD.sub("<file>", text) if "/proc/self/fd/" in text else text)


def public_values(value: Any) -> Any:
    """A document with every text in it made public; what is not a mapping, a list or a text stays as it is."""
    if isinstance(value, str):
        return public_text(value)
    if isinstance(value, dict):
        return {public_values(key): public_values(inner) for key, inner in value.items()}
    return [public_values(inner) for inner in value] if isinstance(value, list) else value


def unusable_key_file(reference: str, reason: object) -> str:
    """The one text for a key reference ``file:PATH`` without a key, whatever is wrong; the log has the reason.

    Those who write references are not to learn what there is on this machine.
    """
    shown = reference.replace("file:///", "file:/", 1)
    logger.warning("the key reference %s cannot be used: %s", shown, reason)
    return f"there is no usable file for the key reference {shown}; the log has the reason"


def writable(text: str) -> str:
    """``text`` as UTF-8 can hold it: half a surrogate pair is spelt out, as ``\\udce9``.

    That is what Python makes of bytes that are not text: in the name of a file, the message of an agent written in C.
    """
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    """``text`` for one line of a terminal: what would begin another line or move the cursor is escaped.

    A file of a model may have any name, such as one that overwrites what a command has written before it.
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _public(match: re.Match[str], what: str, depth: int) -> str:
    tail = match["tail"]
    path = tail.rstrip(_ENDINGS)
    left = path.strip("/").split("/")[depth:] if path.strip("/") else []
    return ("/".join(left) or what) + tail[len(path) :]
