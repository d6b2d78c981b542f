"""The base of all configuration, request and result classes: checked attributes and compact pickles.

A subclass is a dataclass whose annotations carry rules::

    @dataclass(eq=False)
    class AdditionalModelOutput(Record, pickled=2):
        name: Annotated[str, rules.text]
        gather_context: Annotated[bool, rules.boolean] = False

Every assignment goes through the rule of its field. Class options: ``readonly`` (fields are set once, by the
constructor), ``extensible`` (other attributes may be set too), ``pickled`` (length of the state tuple; None: the
class cannot be pickled), ``lost`` (fields that a pickle leaves out).
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.rules import Rule, passes_none


def _rules_of(cls: type) -> dict[str, Rule | None]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: _rule_of(hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar and name != "_"}


def _rule_of(hint: object) -> Rule | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((meta for meta in get_args(hint)[1:] if callable(meta)), None)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a subclass is like. One object with a name that no one lists among the members of a configuration.

    ``optional``: fields that may be None whatever their rule. ``state``: what a pickle has; None: no pickles.
    """

    rules: dict[str, Rule | None]
    optional: frozenset[str] = frozenset()
    readonly: bool = False
    extensible: bool = False
    state: tuple[str, ...] | None = None


class Record:
    """Checked attributes; see the module's text for how a subclass is written."""

    __record__: ClassVar[_Layout] = _Layout({})

    def __init_subclass__(
        cls, *, readonly: bool = False, extensible: bool = False, pickled: int | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        super().__init_subclass__()
        found = _rules_of(cls)
        optional = frozenset(name for name, rule in found.items() if rule is None or passes_none(rule))
        state = None if pickled is None else tuple(name for name in found if name not in lost)
        assert pickled is None or len(state or ()) == pickled, f"{cls.__name__}: {len(state or ())} fields"
        cls.__record__ = _Layout(found, optional, readonly, extensible, state)

    @classmethod
    def sparse(cls, **values: Any) -> Self:
        """The same as ``cls(**values)``, of values by name; defaults, which need no check, are not checked."""
        made = cls.__new__(cls)
        fields = made.__dict__
        fields.update(_defaults_of(cls))  # type: ignore[arg-type]
        for name, value in values.items():
            if name not in fields:
                raise TypeError(f"{cls.__name__} has no field {name!r}")
            fields[name] = made._ruled(name, value)
        made.__post_init__()
        return made

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__record__.rules:
            return self._set_extra(name, value)
        again = name in self.__dict__
        if again and self.__record__.readonly:
            raise AttributeError(f"{type(self).__name__}.{name} is read-only")
        stored = self._ruled(name, value)
        if not again:
            self.__dict__[name] = stored
            return None
        return self._replace(name, stored)

    def _ruled(self, name: str, value: object) -> Any:
        """What the field ``name`` stores of ``value``."""
        rule = self.__record__.rules[name]
        if rule is None or (value is None and name in self.__record__.optional):
            return value
        return rule(value, f"{type(self).__name__}.{name}")

    def _set_extra(self, name: str, value: object) -> None:
        if not self.__record__.extensible:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        object.__setattr__(self, name, value)

    def _replace(self, name: str, stored: object) -> None:
        before = self.__dict__[name]
        self.__dict__[name] = stored
        try:
            self._check_together()
        except CheckError:
            self.__dict__[name] = before
            raise

    def __post_init__(self) -> None:
        self._check_together()

    def _check_together(self) -> None:
        """Rules between fields; called after construction and after each assignment, which it may undo by raising."""

    def __copy__(self) -> Self:
        """A new object with the same fields, those that a pickle leaves out too."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> tuple[Any, ...]:
        if self.__record__.state is None:
            raise TypeError(f"cannot pickle '{type(self).__name__}' object")
        return tuple(self.__dict__[name] for name in self.__record__.state)

    def __setstate__(self, state: object) -> None:
        names = self.__record__.state
        if names is None or not isinstance(state, tuple) or len(state) != len(names):
            raise CheckError(f"Invalid {type(self).__name__} state!")
        try:
            self._restore({name: self._ruled(name, value) for name, value in zip(names, state, strict=True)})
            self._check_together()
        except (CheckError, TypeError) as error:
            raise CheckError(f"Invalid {type(self).__name__} state! {error}") from error

    def _restore(self, values: dict[str, Any]) -> None:
        """Fill the fields from a pickle; fields that a pickle leaves out get their defaults."""
        fields: dict[str, Any] = getattr(type(self), "__dataclass_fields__", {})
        for name, field in fields.items():
            self.__dict__[name] = values.get(name, field.default)


@cache
def _defaults_of(cls: type[Record]) -> dict[str, Any]:
    """What ``cls()`` has. No two objects may share a list, so there must be none."""
    defaults = vars(cls())
    assert not any(isinstance(value, list | dict) for value in defaults.values()), cls.__name__
    return defaults
