"""A file of names and signatures becomes a stub: ``tensorrt/__init__.pyi`` as one version has it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FILES: Final = Path(__file__).parent
_SINCE: Final = re.compile(r"\s*\[since (\d+)\.(\d+)\]\s*$")
_MARKS: Final = re.compile(r"\s*\{lean\}")
_DEFAULT: Final = re.compile(r"= [\w.\[\]()]+")
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_KNOWN: Final = {"Any", "Iterable", "Iterator", "Sequence", "Callable", "Buffer", "None", "self"}
_BUILTIN: Final = {"int", "str", "float", "bool", "object", "bytes", "tuple", "list", "dict", "slice"}

# These give None where they fail: the bindings do not state it.
_NONE_ON_FAILURE: Final = {
    "Builder.build_serialized_network",
    "ICudaEngine.create_execution_context",
    "ICudaEngine.get_aliased_input_tensor",
    "Runtime.deserialize_cuda_engine",
}
# What works although no signature states it: an old-style iteration, and the buffer protocol of C.
_UNSTATED: Final = {
    "Dims": "def __iter__(self) -> Iterator[builtins.int]: ...",
    "IHostMemory": "def __buffer__(self, flags: builtins.int) -> memoryview: ...",
}
_EXTRA: Final = {"Logger": ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"]}
_EXTRA["ILogger"] = _EXTRA["Logger"]


@dataclass
class Surface:
    """What a version of the module has, by name."""

    functions: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    enums: dict[str, list[str]] = field(default_factory=dict)
    classes: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def read(self, path: Path, newest: tuple[int, int]) -> "Surface":
        """Take what the file has up to a version; and take away what it calls missing."""
        target: list[str] | None = None
        for line in path.read_text().splitlines():
            since = _SINCE.search(line)
            line = _MARKS.sub("", _SINCE.sub("", line)).rstrip()
            if line.startswith("## in "):
                return self
            if not line or line.startswith("#"):
                continue
            new = since is not None and (int(since[1]), int(since[2])) > newest
            if line.startswith("  "):
                if target is not None and not new:
                    target.append(line.strip())
            else:
                target = None if new else self._top(line)
        return self

    def _top(self, line: str) -> list[str] | None:
        kind, _, rest = line.partition(" ")
        match kind:
            case "fn":
                self.functions.append(rest)
            case "attr":
                self.attributes.append(rest)
            case "enum":
                return self.enums.setdefault(rest.rstrip(":"), [])
            case "class":
                name, _, bases = rest.rstrip(":").partition("(")
                return self.classes.setdefault(name, (bases.rstrip(")"), []))[1]
            case "missing":
                self._miss(rest)
        return None

    def _miss(self, name: str) -> None:
        self.classes.pop(name, None)
        self.enums.pop(name, None)
        owner, _, member = name.rpartition(".")
        for lines in (self.enums.get(owner, []), self.classes.get(owner, ("", []))[1]):
            lines[:] = [one for one in lines if not re.match(rf"((def|prop) )?{member}\b", one)]


def stub_of(surface: Surface) -> str:
    """The text of the stub."""
    lines = [
        "import builtins",
        "from collections.abc import Callable, Iterable, Iterator, Sequence",
        "from typing import Any, ClassVar, overload",
        "from typing_extensions import Buffer",
        "__version__: str",
    ]
    for name, members in surface.enums.items():
        if "." not in name:
            lines += _enum(name, members)
    for name, (bases, members) in _bases_first(surface.classes):
        lines.append(f"class {name}({bases}):" if bases else f"class {name}:")
        nested = [one for one in surface.enums if one.startswith(f"{name}.")]
        body = [f"    {line}" for one in nested for line in _enum(one, surface.enums[one])]
        body += [f"    {constant}: ClassVar[{name}.Severity]" for constant in _EXTRA.get(name, ())]
        body += [f"    {_UNSTATED[name]}"] if name in _UNSTATED else []
        body += [f"    {line}" for line in _members(name, members, surface)]
        lines += body or ["    ..."]
    lines += [line for one in surface.functions for line in _function(one, surface)]
    lines += [f"{name}: DataType" for name in surface.attributes if name != "__version__"]
    return "\n".join(lines) + "\n"


def _bases_first(classes: dict[str, tuple[str, list[str]]]) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    done: set[str] = set()

    def give(name: str) -> Iterator[tuple[str, tuple[str, list[str]]]]:
        if name in done or name not in classes:
            return
        done.add(name)
        for base in classes[name][0].split(","):
            yield from give(base.strip())
        yield name, classes[name]

    for name in classes:
        yield from give(name)


def _enum(full_name: str, members: Iterable[str]) -> list[str]:
    name = full_name.rpartition(".")[2]
    # Not an IntEnum: those of pybind11 take no arithmetic, and 1 << flag is a mistake that must show.
    fields = [one.partition(" ")[0] for one in members]
    head = [f"class {name}:", "    name: builtins.str", "    value: builtins.int"]
    head += ["    def __init__(self, value: builtins.int) -> None: ...", "    def __int__(self) -> builtins.int: ..."]
    head.append(f"    __members__: ClassVar[builtins.dict[builtins.str, {full_name}]]")
    return head + [f"    {field}: ClassVar[{full_name}]" for field in fields if field != "None"]


def _members(owner: str, members: Iterable[str], surface: Surface) -> Iterator[str]:
    defs: dict[str, list[str]] = {}
    for line in members:
        if line.startswith("prop "):
            yield from _property(line, surface)
        else:
            static = line.startswith("@staticmethod ")
            text = line.removeprefix("@staticmethod ").removeprefix("def ")
            made = _signature(text, owner, surface)
            defs.setdefault(text.partition("(")[0], [])
            if made not in defs[text.partition("(")[0]]:
                defs[text.partition("(")[0]].append(("@staticmethod\n    " if static else "") + made)
    for overloads in defs.values():
        for text in overloads:
            if len(overloads) > 1:
                yield "@overload"
            yield text


def _property(line: str, surface: Surface) -> Iterator[str]:
    match = re.match(r"prop (\w+): (.*) \[(\w+)\]$", line)
    assert match is not None, line
    name, kind, access = match.groups()
    if access == "r":
        yield "@property"
        yield f"def {name}(self) -> {_type(kind, surface)}: ..."
    else:
        yield f"{name}: {_type(kind, surface)}"


def _function(text: str, surface: Surface) -> Iterator[str]:
    if "->" in text:
        yield _signature(text, "", surface)
    else:
        yield f"def {text.partition('(')[0]}(*arguments: Any) -> Any: ..."


def _signature(text: str, owner: str, surface: Surface) -> str:
    name, _, rest = text.partition("(")
    if "->" not in rest:
        return f"def {name}(self, *arguments: Any, **more: Any) -> Any: ..."
    given, _, result = rest.rpartition(") -> ")
    given = _DEFAULT.sub("= ...", given)
    given = re.sub(r"\barg(\d+)", r"__arg\1", given)
    given = re.sub(r"\b(in|is|from|lambda):", r"__\1:", given)  # Python's own words
    head, _, tail = given.rpartition("= ...")
    if re.search(r"\w+: ", tail):  # One without a default follows: in C++ that is allowed.
        given = head.replace(" = ...", "") + tail
    kind = _type(result, surface)
    if f"{owner}.{name}" in _NONE_ON_FAILURE:
        kind += " | None"
    return f"def {name}({_type(given, surface, names=True)}) -> {kind}: ..."


def _type(text: str, surface: Surface, *, names: bool = False) -> str:
    """``text`` with the types that the module has no name for as Any. Names of parameters stay."""

    def word(match: re.Match[str]) -> str:
        found = match[0]
        if names and text[match.end() :].lstrip().startswith(":") and not text[: match.start()].endswith("= "):
            return found
        if found in _KNOWN:
            return found
        if found in _BUILTIN:
            return f"builtins.{found}" if found != "tuple" else "builtins.tuple[Any, ...]"
        if found in surface.enums or found in surface.classes:
            return found
        return "Any"

    text = text.replace("tuple[", "Tuple[").replace("Iterable", "Iterable[Any]").replace("Callable", "Any")
    text = re.sub(r"\blist\b(?!\[)", "list[Any]", text)
    text = re.sub(r"\bdict\b(?!\[)", "dict[Any, Any]", text)
    return _WORD.sub(word, text).replace("Tuple[", "builtins.tuple[")
