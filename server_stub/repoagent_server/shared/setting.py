"""A setting of the server, declared once: a field of an option class, with its default, bounds and text.

``repoagent serve`` makes the flag, the environment variable and the key of the configuration file from it. Embedders
use the class alone, so this module imports nothing of the command line.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

SETTING: Final = "setting"
"""The key of a :class:`Setting` in the metadata of a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a flag is made of, besides the field's name, type and default."""

    text: str
    flags: tuple[str, ...] = ()
    """The spellings of the flag, where the field's name with dashes is not the only one."""
    least: int | None = None
    most: int | None = None
    kind: Any = None
    """A tuple of choices, a type of click's, or "pattern" for a regular expression on names of headers."""
    metavar: str | None = None


def setting(
    default: Any,
    text: str,
    *flags: str,
    least: int | None = None,
    most: int | None = None,
    kind: Any = None,
    metavar: str | None = None,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """A field with a flag; see :class:`Setting`. A ``default`` of ``...`` is none: the flag is required."""
    one = Setting(text=text, flags=flags, least=least, most=most, kind=kind, metavar=metavar)
    metadata: Mapping[str, Any] = {SETTING: one}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=MISSING if default is ... else default, metadata=metadata)
