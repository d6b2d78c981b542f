import json
import logging
import sys

from repoagent.server.logs import JsonFormatter


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    made = logging.LogRecord("repoagent.x", logging.WARNING, "/a/b/c.py", 7, message, args, exc_info)  # type: ignore[arg-type]
    made.created = 1_795_255_201.25
    return made


def test_a_line_is_one_object_with_everything_that_is_known() -> None:
    line = JsonFormatter().format(record('model "%s"\nfails: é', "m"))
    assert "\n" not in line
    entry = json.loads(line)
    assert entry.pop("process") > 0
    assert entry == {
        "timestamp": "2026-11-21T10:00:01.250000Z",
        "level": "WARNING",
        "logger": "repoagent.x",
        "thread": "MainThread",
        "file": "c.py",
        "line": 7,
        "message": 'model "m"\nfails: é',
    }


def test_an_exception_is_told_in_full() -> None:
    try:
        raise ValueError("no luck")
    except ValueError:
        entry = json.loads(JsonFormatter().format(record("x", exc_info=sys.exc_info())))
    assert entry["exception"].endswith("ValueError: no luck")
