"""Print, for CMake, what is baked into the C layer: an interpreter, its shared library, and the name of that.

The layer first looks for the environment that it is installed in, so these count where it was copied elsewhere.
"""

import sys
import sysconfig
from pathlib import Path

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def library_name() -> str:
    """``libpython3.11.so.1.0``, also for an interpreter that is linked statically."""
    stated = str(sysconfig.get_config_var("INSTSONAME") or "")
    return stated if ".so" in stated else f"libpython{VERSION}.so.1.0"


def library_path(name: str) -> Path:
    """Where the library is, or would be."""
    directory = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    nested = directory / str(sysconfig.get_config_var("MULTIARCH") or "") / name
    return nested if nested.exists() else directory / name


sys.stdout.write(";".join((sys.executable, str(library_path(library_name())), library_name())))
