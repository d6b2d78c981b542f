"""Native code that a policy pins: what is opened is a copy that was compared with the digests.

The whole directory is copied, as a library may need others that lie beside it.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from repoagent.errors import UnavailableError
from repoagent.loader.pinned_code import PINNED_CODE

__all__ = ["private_copy"]


def private_copy(library: Path) -> Path | None:
    """A private directory with the files that lie beside ``library``; None if no policy pins them.

    Raises:
        UnavailableError: a file is not the one that the policy allows.
    """
    if PINNED_CODE.digest_of(library) is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="repoagent-native-"))
    try:
        _copy(library.parent, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _copy(source: Path, target: Path) -> None:
    for directory, _, names in os.walk(source):
        to = target / Path(directory).relative_to(source)
        to.mkdir(exist_ok=True)
        for name in names:
            content = (Path(directory) / name).read_bytes()
            if PINNED_CODE.digest_of(Path(directory) / name) != hashlib.sha256(content).hexdigest():
                raise UnavailableError(f"{name} is not the file that the policy allows; it was changed, or added")
            (to / name).write_bytes(content)
            (to / name).chmod(0o500)
