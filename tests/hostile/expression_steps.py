"""The steps of a matcher that backtracks as `re` does: a count that no machine changes, for texts made to attack."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

Rest = Callable[[int], bool]
Items = list[tuple[Any, Any]]

ANYWHERE = frozenset({"search", "finditer", "findall", "sub", "subn", "split"})
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    _constants.CATEGORY_DIGIT: lambda c: unicodedata.category(c) == "Nd",
    _constants.CATEGORY_SPACE: str.isspace,
    _constants.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
}
_CHARACTERS = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
_NEGATED = {
    _constants.CATEGORY_NOT_DIGIT: _constants.CATEGORY_DIGIT,
    _constants.CATEGORY_NOT_SPACE: _constants.CATEGORY_SPACE,
    _constants.CATEGORY_NOT_WORD: _constants.CATEGORY_WORD,
}


class TooManyStepsError(Exception):
    """The count has reached its bound."""


@dataclass
class Expression:
    """A pattern, read by the parser of `re`."""

    pattern: str | bytes
    flags: int
    items: Items = field(init=False)
    _taken: dict[tuple[Any, int, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parsed = _parser.parse(self.pattern, self.flags)
        self.flags = int(parsed.state.flags)
        self.items = list(parsed)

    def takes(self, op: Any, av: Any, char: str) -> bool:
        """Whether an item of one character takes this one."""
        key = (op, av if isinstance(av, int) else id(av), char)
        if key not in self._taken:
            cases = {char, char.lower(), char.upper()} if self.flags & int(re.IGNORECASE) else {char}
            self._taken[key] = any(_takes(op, av, case, self.flags) for case in cases if len(case) == 1)
        return self._taken[key]


def _takes(op: Any, av: Any, char: str, flags: int) -> bool:
    if op is _constants.LITERAL:
        return bool(ord(char) == av)
    if op is _constants.NOT_LITERAL:
        return bool(ord(char) != av)
    if op is _constants.ANY:
        return char != "\n" or bool(flags & int(re.DOTALL))
    negate = av[0][0] is _constants.NEGATE
    return negate != any(_member(kind, value, char) for kind, value in av[negate:])


def _member(kind: Any, value: Any, char: str) -> bool:
    if kind is _constants.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is _constants.CATEGORY:
        return _CATEGORIES[value](char) if value in _CATEGORIES else not _CATEGORIES[_NEGATED[value]](char)
    return bool(ord(char) == value)


def parts(av: Any) -> Iterator[Items]:
    """Every list of items that is directly within an item."""
    if isinstance(av, _parser.SubPattern):
        yield list(av)
    elif isinstance(av, list | tuple):
        for part in av:
            yield from parts(part)


class Matcher:
    """Counts what one call of a method of an expression does with one text."""

    def __init__(self, expression: Expression, text: str, most: int) -> None:
        self._expression, self._text, self._most = expression, text, most
        self._groups: dict[int, tuple[int, int]] = {}
        self.steps = 0

    def run(self, method: str) -> int:
        """The steps of the method, or the bound where there are more."""
        start = 0
        try:
            while start <= len(self._text):
                end = self._once(start, whole=method == "fullmatch")
                if method not in ANYWHERE:
                    break
                start = max(end, start + 1)
        except TooManyStepsError:
            return self._most
        return self.steps

    def _once(self, start: int, *, whole: bool) -> int:
        self._groups.clear()
        ends: list[int] = []

        def done(at: int) -> bool:
            if whole and at != len(self._text):
                return False
            ends.append(at)
            return True

        return ends[0] if self._items(self._expression.items, 0, start, done) else 0

    def _items(self, items: Items, index: int, at: int, rest: Rest) -> bool:
        if index == len(items):
            return rest(at)
        self.steps += 1
        if self.steps > self._most:
            raise TooManyStepsError
        op, av = items[index]
        return self._item(op, av, at, lambda end: self._items(items, index + 1, end, rest))

    def _item(self, op: Any, av: Any, at: int, rest: Rest) -> bool:
        if op in _REPEATS:
            low, high, body = av
            if op is _constants.POSSESSIVE_REPEAT:
                return self._atomic(lambda end: self._repeat((low, high, list(body)), 0, at, end, lazy=False), rest)
            return self._repeat((low, high, list(body)), 0, at, rest, lazy=op is _constants.MIN_REPEAT)
        if op is _constants.BRANCH:
            return any(self._items(list(branch), 0, at, rest) for branch in av[1])
        if op is _constants.SUBPATTERN:
            return self._group(av[0], list(av[3]), at, rest)
        if op is _constants.ATOMIC_GROUP:
            return self._atomic(lambda end: self._items(list(av), 0, at, end), rest)
        if op in {_constants.ASSERT, _constants.ASSERT_NOT}:
            return self._look(av[0], list(av[1]))(at) is (op is _constants.ASSERT) and rest(at)
        if op is _constants.AT:
            return self._place(av, at) and rest(at)
        if op is _constants.GROUPREF:
            first, last = self._groups.get(av, (0, -1))
            said = self._text[first:last]
            return last >= 0 and self._text.startswith(said, at) and rest(at + len(said))
        return at < len(self._text) and self._expression.takes(op, av, self._text[at]) and rest(at + 1)

    def _repeat(self, repeat: tuple[int, int, Items], count: int, at: int, rest: Rest, *, lazy: bool) -> bool:
        low, high, body = repeat

        def again() -> bool:
            return count < high and self._items(body, 0, at, further)

        def further(end: int) -> bool:
            if end == at and count >= low:
                return False
            return self._repeat(repeat, count + 1, end, rest, lazy=lazy)

        if count < low:
            return again()
        return (rest(at) or again()) if lazy else (again() or rest(at))

    def _group(self, number: int | None, items: Items, at: int, rest: Rest) -> bool:
        if number is None:
            return self._items(items, 0, at, rest)
        before = self._groups.get(number)

        def closed(end: int) -> bool:
            self._groups[number] = (at, end)
            return rest(end)

        if self._items(items, 0, at, closed):
            return True
        self._groups.pop(number, None)
        if before:
            self._groups[number] = before
        return False

    def _atomic(self, inner: Callable[[Rest], bool], rest: Rest) -> bool:
        ends: list[int] = []

        def done(end: int) -> bool:
            ends.append(end)
            return True

        return inner(done) and rest(ends[0])

    def _look(self, direction: int, items: Items) -> Callable[[int], bool]:
        if direction > 0:
            return lambda at: self._items(items, 0, at, lambda _: True)
        width = sum(_parser.SubPattern(_parser.State(), items).getwidth()[:1])
        return lambda at: at >= width and self._items(items, 0, at - width, lambda end: end == at)

    def _place(self, av: Any, at: int) -> bool:
        text, lines = self._text, self._expression.flags & int(re.MULTILINE)
        if av in {_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING}:
            return at == 0 or bool(lines and av is _constants.AT_BEGINNING and text[at - 1] == "\n")
        if av in {_constants.AT_END, _constants.AT_END_STRING}:
            ends = at == len(text) or (av is _constants.AT_END and text[at:] == "\n")
            return ends or bool(lines and av is _constants.AT_END and text[at] == "\n")
        word = _CATEGORIES[_constants.CATEGORY_WORD]
        edge = (at > 0 and word(text[at - 1])) != (at < len(text) and word(text[at]))
        return edge is (av is _constants.AT_BOUNDARY)


class Attack:
    """Texts made of what an expression takes, repeated from each place where it repeats."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        classes = list(_classes(expression.items))
        chars = {"a", "0", "A", " ", "\n", "-", "\x00", "\xe9"}
        chars |= {chr(code) for op, av in classes for code in _codes(op, av)}
        alike: dict[tuple[bool, ...], str] = {}
        for char in sorted(chars, key=lambda c: (c not in "a0A", c)):
            alike.setdefault(tuple(expression.takes(op, av, char) for op, av in classes), char)
        self._chars = list(alike.values())

    def repeats(self) -> list[tuple[str, str]]:
        """For each unbounded repeat: what comes before it, and what it repeats."""
        return list(self._repeats(self._expression.items, ""))

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """The head, the part to repeat, and the tail of every text."""
        repeats = self.repeats()
        heads = dict.fromkeys(["", *(head for head, _ in repeats)])
        words = [word for head, body in repeats for word in (body, head, head + body, head + body * 3)]
        pumps = dict.fromkeys([*self._chars, *words, self._sample(self._expression.items)])
        return ((head, pump, tail) for head in heads for pump in pumps if pump for tail in ("", "\x00"))

    def _repeats(self, items: Items, head: str) -> Iterator[tuple[str, str]]:
        for op, av in items:
            if op in _REPEATS and av[1] == _constants.MAXREPEAT:
                yield head, self._sample(list(av[2]))
            for part in parts(av):
                yield from self._repeats(part, head)
            head += self._sample([(op, av)])

    def _sample(self, items: Items) -> str:
        return "".join(self._word(op, av) for op, av in items)

    def _word(self, op: Any, av: Any) -> str:
        if op in _CHARACTERS:
            return next((char for char in self._chars if self._expression.takes(op, av, char)), "")
        if op in _REPEATS:
            return self._sample(list(av[2])) * max(1, int(av[0]))
        if op in {_constants.SUBPATTERN, _constants.ATOMIC_GROUP, _constants.BRANCH}:
            return self._sample(next(parts(av), []))
        return ""


def _classes(items: Items) -> Iterator[tuple[Any, Any]]:
    for op, av in items:
        if op in _CHARACTERS:
            yield op, av
        else:
            for part in parts(av):
                yield from _classes(part)


def _codes(op: Any, av: Any) -> Iterator[int]:
    if op is _constants.IN:
        for kind, value in av:
            yield from _codes(kind, value)
    elif op is _constants.RANGE:
        yield from av
    elif isinstance(av, int) and op in {_constants.LITERAL, _constants.NOT_LITERAL}:
        yield av


_MOST = 30_000


def worst(pattern: str | bytes, flags: int, method: str) -> tuple[str, str, str] | None:
    """The head, the repeated part and the tail of a text of which twice as much takes far more than twice the steps."""
    expression = Expression(pattern, flags)
    attack = Attack(expression)
    if not attack.repeats() or (method not in ANYWHERE and _one_of_one_character(expression.items)):
        return None
    for head, pump, tail in attack.texts():
        size = max(4, min(24, 200 // len(pump)))
        texts = (head + pump * count + tail for count in (size, 2 * size, 4 * size))
        steps = (Matcher(expression, text, _MOST).run(method) for text in texts)
        few, more = next(steps), next(steps)
        if more <= 2.2 * few + 10 and more < _MOST:
            continue
        most = next(steps)
        if most == _MOST or most - more > 2.6 * max(more - few, 1) + 20:
            return head, pump, tail
    return None


def _one_of_one_character(items: Items) -> bool:
    """Whether the only unbounded repeat is of one character: from one place, it is left once for each."""
    bodies = list(_bodies(items))
    return len(bodies) == 1 and len(bodies[0]) == 1 and bodies[0][0][0] in _CHARACTERS


def _bodies(items: Items) -> Iterator[Items]:
    for op, av in items:
        if op in _REPEATS and av[1] == _constants.MAXREPEAT:
            yield list(av[2])
        for part in parts(av):
            yield from _bodies(part)
