"""The converters that plug-ins bring, on top of those that are built in."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Final, cast

from repoagent.api.converters import ConversionSource, Converter
from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.installing import missing_format

_PARTS: Final = ("version", "options", "in_child", "plan", "build", "configure")


def resolve(target: str) -> Converter:
    """The converter that ``"module:attribute"`` names. Raises ``InternalError`` without one: the fault of the plug-in
    that registered it."""
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        converter = found() if isinstance(found, type) else found
    except Exception as error:  # an import runs code of the plug-in
        raise InternalError(f"the converter '{target}' cannot be imported: {error}") from error
    missing = [part for part in _PARTS if not hasattr(converter, part)]
    if missing:
        raise InternalError(f"'{target}' is not a converter: it lacks {', '.join(missing)}")
    return cast(Converter, converter)


class Converters:
    """Every converter of a program by the formats that it is between. Code is imported on first use."""

    def __init__(self, targets: Mapping[tuple[str, str], str]) -> None:
        self._targets = dict(targets)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """``(from, to)`` of all of them, sorted."""
        return tuple(sorted(self._targets))

    def target(self, pair: tuple[str, str]) -> str:
        """Where the code of the converter ``(from, to)`` is; raises ``InvalidArgumentError`` if there is none."""
        if pair in self._targets:
            return self._targets[pair]
        source, target = pair
        targets = [to for start, to in self.pairs if start == source]
        known = targets or sorted({start for start, _ in self.pairs})
        close = difflib.get_close_matches(target if targets else source, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known) or 'none'}"
        known_formats = {form for known_pair in self.pairs for form in known_pair}
        for form in pair:
            if form not in known_formats and (missing := missing_format(form)):
                hint = f"of '{form}': {missing}"
        wanted = f"from '{source}' to '{target}'" if targets else f"from '{source}'"
        raise InvalidArgumentError(f"there is no converter {wanted}; {hint}")

    def get(self, pair: tuple[str, str]) -> Converter:
        """The converter ``(from, to)``. Raises as :meth:`target` and :func:`resolve` do."""
        return resolve(self.target(pair))

    def redirected(
        self, pair: tuple[str, str], source: ConversionSource, options: Mapping[str, str]
    ) -> tuple[tuple[str, str], ConversionSource, dict[str, str]]:
        """The conversion that is meant: a converter with a method ``redirect`` names the file that is converted. Raises
        if what that reads is damaged, or names nothing that is converted."""
        redirect = getattr(self.get(pair), "redirect", None)
        if redirect is None:
            return pair, source, dict(options)
        pair, source, options = redirect(source, options)
        known = self.get(pair).options
        return pair, source, {name: value for name, value in options.items() if name in known}


def option_values(converter: Converter, given: Mapping[str, str]) -> dict[str, str]:
    """``given`` with the defaults of the others; raises ``InvalidArgumentError`` for an option that there is not."""
    for name in given:
        if name not in converter.options:
            close = difflib.get_close_matches(name, converter.options, n=1)
            known = ", ".join(sorted(converter.options)) or "none"
            hint = f"did you mean '{close[0]}'?" if close else f"expected one of: {known}"
            raise InvalidArgumentError(f"unknown parameter '{name}'; {hint}")
    defaults = {name: option.default for name, option in converter.options.items() if option.default is not None}
    return defaults | dict(given)
