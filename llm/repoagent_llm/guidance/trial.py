"""A first compilation of each guide in a process that may be ended: it may take any time and memory, or crash.

Before that, how deeply a guide is nested is counted without recursion: parsers call themselves once for each level.
"""

import json
import re
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from repoagent.errors import UnavailableError
from repoagent.programs import start_python
from repoagent_llm.types.executor_errors import CheckError, EngineError
from repoagent_llm.types.guidance import GuidedDecodingParams

MOST_LEVELS: Final = 100
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_CODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_BRACKET: Final = re.compile(r"\[\^?\]?|[](){}]")
"""Right behind its opening bracket the closing one is a character of the class."""


def check_depth(guide: str, *, is_json: bool) -> None:
    """Raise ``CheckError`` if brackets are open inside of more than ``MOST_LEVELS`` others.

    In JSON each string is counted by itself, for it may be an expression or a grammar. Elsewhere quotes may mean a
    string or nothing, so both are counted.
    """
    outside = _STRING.sub("", guide)
    if is_json:
        outside = outside.replace("[", "{").replace("]", "}")  # These are no classes of characters.
    others = map(_spelled, _STRING.findall(guide)) if is_json else (guide,)
    if any(_deepest(text) > MOST_LEVELS for text in (outside, *others)):
        raise CheckError(f"the guide is nested too deeply: more than {MOST_LEVELS} levels of brackets")


def _spelled(text: str) -> str:
    """A string of JSON as what reads it next sees it, as far as brackets go."""
    return _CODE.sub(lambda code: chr(int(code[1], 16)), text).replace("\\\\", "\\")


def _deepest(text: str) -> int:
    deepest = level = classes = 0
    for found in _BRACKET.finditer(_ESCAPED.sub("", text)):
        bracket = found[0][0]
        if bracket == "[":
            classes += 1
        elif bracket == "]":
            classes = max(0, classes - 1)
        elif not classes:  # there it is a character
            level = level + 1 if bracket in "({" else max(0, level - 1)
        deepest = max(deepest, level + classes)
    return deepest


PARSER_LIMITS: Final[Mapping[str, Any]] = {"initial_lexer_fuel": 200_000, "verbose_errors": False}
"""Of llguidance, for what happens at each token."""
_PROGRAM: Final = Path(__file__).with_name("trial_child.py")
_SECONDS: Final = 2.0
"""Of the processor, for one guide; real ones take some milliseconds."""
_PATIENCE: Final = 60.0
"""Seconds of waiting for it on a busy machine."""
_MEMORY: Final = 1 << 30
"""Bytes of addresses that the process may have."""
_KEPT: Final = 4 << 20
"""Characters of guides and their grammars that have been tried, for the next request with the same."""
_LONGEST: Final = 400
"""Characters of what a compiler writes about a guide: it may repeat all of it."""


class Trial:
    """Makes grammars of guides that are known to compile. May be used by many threads, which wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._tried: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._kept = 0

    def grammar(self, params: GuidedDecodingParams) -> str:
        """What llguidance's matcher takes.

        Raises:
            CheckError: the guide cannot be read or compiled, or that takes too much.
            EngineError: the process cannot be started.
        """
        kind, guide = params.guide_type.name, params.guide or ""
        check_depth(guide, is_json=kind in ("JSON_SCHEMA", "STRUCTURAL_TAG"))
        with self._lock:
            found = self._tried.get((kind, guide))
            if found is None:
                found = self._compiled(kind, guide)
                self._keep(kind, guide, found)
            else:
                self._tried.move_to_end((kind, guide))
        return found

    def close(self) -> None:
        """End the process, which no one uses any more."""
        if self._process is not None:
            self._process.kill()
            _end(self._process)

    def _compiled(self, kind: str, guide: str) -> str:
        answer = self._answer({"kind": kind, "guide": guide})
        if answer is None:
            raise CheckError(
                f"the guide cannot be compiled as {kind}: that takes more than {_SECONDS:g} seconds or too much memory"
            )
        if "grammar" not in answer:
            reason = str(answer["reason"]).partition("\n")[0]
            reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
            raise CheckError(f"the guide cannot be {answer['verb']} as {kind}: {reason}")
        return str(answer["grammar"])

    def _answer(self, asked: Mapping[str, str]) -> dict[str, Any] | None:
        """None: the process has ended over it, or had to be ended."""
        process = self._running()
        watch = threading.Timer(_PATIENCE, process.kill)
        watch.daemon = True
        watch.start()
        try:
            return _exchange(process, asked)
        except (OSError, ValueError):
            process.kill()
            status = _end(process)
            self._process = None
            if status not in (-signal.SIGPROF, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, 1):
                raise EngineError(f"the process that compiles guides ended with status {status}") from None
            return None
        finally:
            watch.cancel()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._process is not None:
            _end(self._process)
        try:
            self._process = start_python(
                _PROGRAM, subprocess.PIPE, "the process that compiles guides", stdout=subprocess.PIPE
            )
            _send(self._process, {"seconds": _SECONDS, "memory": _MEMORY, "limits": dict(PARSER_LIMITS)})
        except UnavailableError as error:
            raise EngineError(str(error)) from error
        except OSError as error:
            raise EngineError(f"the process that compiles guides does not start: {error.strerror}") from error
        return self._process

    def _keep(self, kind: str, guide: str, grammar: str) -> None:
        self._tried[kind, guide] = grammar
        self._kept += len(guide) + len(grammar)
        while self._kept > _KEPT:
            (_, oldest), made = self._tried.popitem(last=False)
            self._kept -= len(oldest) + len(made)


def _exchange(process: "subprocess.Popen[bytes]", asked: Mapping[str, str]) -> dict[str, Any]:
    _send(process, asked)
    answer: dict[str, Any] = json.loads(_pipe(process.stdout).readline())
    return answer


def _send(process: "subprocess.Popen[bytes]", message: Mapping[str, Any]) -> None:
    _pipe(process.stdin).write(json.dumps(message).encode() + b"\n")
    _pipe(process.stdin).flush()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end(process: "subprocess.Popen[bytes]") -> int:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # What could not be written is lost.
            _pipe(pipe).close()
    return process.wait()
