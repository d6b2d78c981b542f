"""The ready file: for scripts that start a server and want to know when, and where, it serves."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_ready_file"]


def write_ready_file(path: Path, addresses: Mapping[str, tuple[str, int]]) -> None:
    """Write ``{"pid": ..., "http": {"address": ..., "port": ...}, ...}``; the file appears whole or not at all."""
    document = {"pid": os.getpid(), **{name: {"address": a, "port": p} for name, (a, p) in addresses.items()}}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(document) + "\n", encoding="utf-8")
    beside.replace(path)
