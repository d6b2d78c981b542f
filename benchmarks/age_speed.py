"""Decryption by the age library of the decrypt agent against ``age`` and ``pyrage``.

    python benchmarks/age_speed.py                  # 2 GiB in one file and in 200; needs 6 GiB of /dev/shm
    python benchmarks/age_speed.py --size 64M       # a quick look

Every tool runs as a process of its own, from the same files on a memory filesystem to the same, in turns, after a round
that does not count (it makes a virtual machine's host hand over the memory); the median of the others counts. "cpu" is
user and system time, which says more than the clock on a busy machine. A peer that is not installed prints MISSING and
makes the exit status 1 (``apt install age``, ``pip install pyrage``), as does output that differs.
"""

import filecmp
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measures import Cost, fill, in_turns, options_of, run, size_of, table
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from servers import report_missing

OURS = """
import sys
from pathlib import Path
from repoagent_decrypt.age.files import decrypt_file
from repoagent_decrypt.age.keys import parse_identities
from repoagent_decrypt.files.positional import Workers
key, source, target = map(Path, sys.argv[1:])
identities = parse_identities(key.read_bytes(), "key").native
with Workers() as workers:
    for path in source.iterdir():
        decrypt_file(path, target / path.name, identities, workers=workers)
"""
PYRAGE = """
import sys
from pathlib import Path
import pyrage
key, source, target = map(Path, sys.argv[1:])
identity = pyrage.x25519.Identity.from_str(key.read_text().strip())
for path in source.iterdir():
    pyrage.decrypt_file(str(path), str(target / path.name), [identity])
"""
AGE = 'for path in "$2"/*; do age -d -i "$1" -o "$3/${path##*/}" "$path" || exit 1; done'
TOOLS = {
    "repoagent": [sys.executable, "-c", OURS],
    "pyrage": [sys.executable, "-c", PYRAGE],
    "age": ["sh", "-c", AGE, "sh"],
}
"""What decrypts all files of a directory into another: the arguments are the key, the source and the target."""


@contextmanager
def sealed(directory: Path, size: int, count: int) -> Iterator[Path]:
    """``key``, and ``count`` files of ``size`` bytes together in ``plain``, encrypted in ``sealed``."""
    with tempfile.TemporaryDirectory(prefix="age-speed-", dir=directory) as name:
        root, identity = Path(name), X25519Identity.generate()
        (root / "key").write_text(identity.export() + "\n")
        (root / "sealed").mkdir()
        for path in fill(root / "plain", size, count).iterdir():
            encrypt_file(path, root / "sealed" / path.name, [identity.recipient])
        yield root


def decrypted(name: str, root: Path) -> Cost:
    """Decrypt everything once, and check the result."""
    target = root / "opened"
    target.mkdir()
    try:
        cost = run([*TOOLS[name], root / "key", root / "sealed", target])
        names = [path.name for path in (root / "plain").iterdir()]
        same, different, missing = filecmp.cmpfiles(root / "plain", target, names, shallow=False)
        if len(same) != len(names):
            sys.exit(f"WRONG OUTPUT: {[*different, *missing]}")
        return cost
    finally:
        shutil.rmtree(target)


def main() -> int:
    options = options_of(
        __doc__, size=("2G", "bytes in all"), rounds=3, directory=(Path("/dev/shm"), "where the files go")
    )
    size, missing = size_of(options.size), {}
    if importlib.util.find_spec("pyrage") is None:
        missing["pyrage"] = "make bench-peers"
    if shutil.which("age") is None:
        missing["age"] = "make bench-peers"
    for count in (1, 200):
        with sealed(options.directory, size, count) as root:
            takes = {name: partial(decrypted, name, root) for name in TOOLS if name not in missing}
            costs = {name: Cost.median(each) for name, each in in_turns(takes, options.rounds, warm=1).items()}
        ours = costs["repoagent"]
        rows = [
            (name, *(f"{figure:.2f}" for figure in figures))
            for name, cost in costs.items()
            for figures in [
                (cost.seconds, cost.cpu, size / cost.seconds / 1e9, cost.seconds / ours.seconds, cost.cpu / ours.cpu)
            ]
        ]
        print(f"\n{size >> 20} MiB in {count} files, {len(os.sched_getaffinity(0))} cores, median of {options.rounds}")
        print(table(("", "seconds", "cpu", "GB/s", "repoagent is faster", "by cpu"), rows))
    return report_missing(missing)


if __name__ == "__main__":
    sys.exit(main())
