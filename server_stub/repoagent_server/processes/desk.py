"""What a worker may ask of the keeper. It reads strangers' bytes, so it is believed as little as they are."""

import base64
import binascii
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from repoagent.audit import Actor, Audit, acting_as
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.serving.core import ServingCore
from repoagent.serving.lifecycle.on_demand import forbidden_step
from repoagent_server.processes.fleet import Fleet
from repoagent_server.processes.roster import is_count
from repoagent_server.shared.merging import merged_metrics, merged_statistics

_FIELDS: Final = ("client", "via", "request", "address")
_EVENTS: Final = frozenset({("denied", "denied"), ("load", "refused")})
"""What a front end records by itself. All else the keeper records when it happens."""
_TEXT_BYTES: Final = 4096
_DETAILS: Final = 32
_PAGE_CHARACTERS: Final = 64 << 20
_LINE_CHARACTERS: Final = 64 << 10
_TEXT: Final = r'"[^"\\\n]*+(?:\\["\\n][^"\\\n]*+)*+"'
_LABEL: Final = rf"[a-zA-Z_]\w*={_TEXT}"
_LINE: Final = re.compile(
    rf"""[#]\ HELP\ [a-zA-Z_:][\w:]*\ .*
      | [#]\ TYPE\ [a-zA-Z_:][\w:]*\ (?:counter|gauge|histogram|summary|untyped)
      | [a-zA-Z_:][\w:]*(?:\{{({_LABEL}(?:,{_LABEL})*+)\}})?
        \ (?:NaN|[+-]Inf|-?\d{{1,308}}(?:\.\d+)?(?:e-\d+)?)""",
    re.ASCII | re.VERBOSE,
)
"""Of a page of metrics, as this server writes it."""
_TEXTS: Final = re.compile(_TEXT)
_PROCESS: Final = "process"
"""The label that names the process."""
_ANSWER_SECONDS: Final = 10.0
_PERMISSION_SECONDS: Final = 10.0
_PER_SECOND: Final = 100
_MOST_PAGES: Final = 2
"""Questions of one worker to all that are under way: each may have a long answer of each of them."""


class Desk:
    """Answers the calls of workers.

    ``allow_load_parameters``: a load may bring a configuration and files; workers check that, too, but a client may
    have taken one over.
    """

    def __init__(self, core: ServingCore, audit: Audit, *, allow_load_parameters: bool) -> None:
        self._allow_load_parameters = allow_load_parameters
        self._core = core
        self._audit = audit
        self.page: Callable[[], str] | None = None
        """The keeper's own page of metrics, if there is one."""

    def answers(self, fleet: Fleet, worker: Callable[[], int]) -> dict[str, Callable[..., Any]]:
        """What the worker of that number may call, by name."""

        def load(actor: Any, name: Any, config: Any, files: Any, version: Any) -> dict[str, Any]:
            if not self._allow_load_parameters and (config is not None or files is not None):
                raise UnsupportedError("a configuration or files in a load are refused: --allow-load-parameters is off")
            text = None if config is None else text_of(config, longest=None)
            with self._acting(fleet, worker, actor):
                report = self._core.load(text_of(name), config=text, files=_files(files), version=_number(version))
                return report.to_dict()

        def unload(actor: Any, name: Any, dependents: Any, wait: Any, version: Any) -> None:
            with self._acting(fleet, worker, actor):
                self._core.unload(
                    text_of(name),
                    unload_dependents=dependents is True,
                    wait=wait is True,
                    version=_number(version),
                )

        def demand(actor: Any, name: Any) -> list[Any] | None:
            """What keeps the client from having a model loaded that others may have loaded; None: it is."""
            with self._acting(fleet, worker, actor, "on-demand"):
                try:
                    self._core.load_on_demand(text_of(name))
                except RepoAgentError as error:
                    if forbidden_step(error) is None:
                        raise
                    return [error.code, str(error)]
            return None

        few = threading.Semaphore(_MOST_PAGES)

        def statistics(name: Any, version: Any) -> dict[str, Any]:
            asked = text_of(name), text_of(version)
            read = partial(_statistics, fleet)
            with few:
                answers = fleet.ask_all("statistics", *asked, timeout=_ANSWER_SECONDS, read=read)
            return merged_statistics(answers)

        def metrics() -> str:
            with few:
                pages = fleet.ask_all("page", timeout=_ANSWER_SECONDS, read=_page)
            own = [("keeper", self.page())] if self.page is not None else []
            return merged_metrics([*pages, *own], _PROCESS)

        pace = Pace(fleet)
        return {
            "load": pace.of(load),
            "unload": pace.of(unload),
            "demand": pace.of(demand),
            "offers": lambda name: self._core.offers(text_of(name)),
            "statistics": statistics,
            "metrics": metrics,
            "index": lambda ready_only: self._index(fleet, ready_only=ready_only is True),
            "link": pace.of(lambda other: fleet.link(worker(), _worker(other, fleet))),
            "report": self._report,
            "attestation": self._attestation,
            "ready": self._core.ready,
            "has_model": lambda name: self._core.has_model(text_of(name)),
            "audit": self._record,
        }

    def _index(self, fleet: Fleet, *, ready_only: bool) -> list[dict[str, str]]:
        """The index, with the process that has a model where only one has it."""
        homes = {(model, str(version)): str(home) for (model, version), home in fleet.homes().items()}
        entries = self._core.index(ready_only=ready_only)
        found = [homes.get((entry["name"], entry.get("version", ""))) for entry in entries]
        return [{**entry, **({"home": home} if home else {})} for entry, home in zip(entries, found, strict=True)]

    def _report(self, name: Any) -> dict[str, Any] | None:
        report = self._core.report(text_of(name))
        return None if report is None else report.to_dict()

    def _attestation(self, name: Any, version: Any) -> str | None:
        document = self._core.attestation(text_of(name), text_of(version))
        return None if document is None else document.decode()

    def _record(self, event: Any, result: Any, what: Any, actor: Any) -> None:
        if (text_of(event), text_of(result)) not in _EVENTS or not isinstance(what, dict) or len(what) > _DETAILS:
            raise InvalidArgumentError("an event that front ends do not record")
        details = {
            text_of(key): value if isinstance(value, int | None) else text_of(str(value)) for key, value in what.items()
        }
        self._audit.note(event, result, details, client(actor))

    @contextmanager
    def _acting(self, fleet: Fleet, worker: Callable[[], int], asked: Any, by: str = "client") -> Iterator[None]:
        if not (isinstance(asked, list) and len(asked) == len(("number", "actor", "restricted"))):
            raise InvalidArgumentError("a call without its actor")
        number, fields, restricted = asked
        manages = _Manages(fleet, worker, number) if restricted is not False else None
        with acting_as(replace(client(fields, manages), by=by)):
            yield


class Pace:
    """Lets a hundred calls of one worker a second do what is logged, audited or heard by others. The rest wait, on
    their threads, of which there are so many that more calls are refused: a flood fills no disk, and once ``fleet``
    stops, it keeps no one from that."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._next = 0.0

    def of(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def paced(*arguments: Any) -> Any:
            with self._lock:
                now = time.monotonic()
                self._next = max(self._next, now - 1) + 1 / _PER_SECOND
                pause = self._next - now
            time.sleep(max(0.0, pause))
            if self._fleet.stopping:
                raise UnavailableError("the server is stopping")
            return answer(*arguments)

        return paced


@dataclass(frozen=True)
class _Manages:
    """Which models the client of a call may bring into service, as its worker answers."""

    fleet: Fleet
    worker: Callable[[], int]
    number: Any
    """The worker's, for these rights."""

    def __call__(self, model: str) -> bool:
        try:
            answer = self.fleet.ask(self.worker(), "manages", self.number, model, timeout=_PERMISSION_SECONDS)
        except RepoAgentError:
            return False
        return answer is True


def _count(part: Any) -> int:
    if not is_count(part):
        raise InvalidArgumentError("a count is expected")
    return int(part)


def _fields(readers: Mapping[str, Callable[[Any], Any]], part: Any) -> dict[str, Any]:
    """What ``part`` has of the fields that are known."""
    return {name: read(part[name]) for name, read in readers.items() if name in part}


def _durations(names: str) -> dict[str, Callable[[Any], Any]]:
    return dict.fromkeys(names.split(), partial(_fields, {"count": _count, "ns": _count}))


_BATCH: Final = {"batch_size": _count, **_durations("compute_input compute_infer compute_output")}
_RESPONSE: Final = _durations("compute_infer compute_output success fail empty_response cancel")
_ENTRY: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("last_inference", "inference_count", "execution_count"), _count),
    "inference_stats": partial(
        _fields, _durations("success fail queue compute_input compute_infer compute_output cache_hit cache_miss")
    ),
    "response_stats": lambda part: {str(_count(int(text_of(key)))): _fields(_RESPONSE, part[key]) for key in part},
    "batch_stats": lambda part: [{"batch_size": one["batch_size"], **_fields(_BATCH, one)} for one in part],
}
"""How each field of a version's statistics is read."""


def _statistics(fleet: Fleet, _worker: int, answer: Any) -> dict[str, Any]:
    """One worker's statistics of the versions that it was given. Raises whatever makes them unreadable."""
    entries = {(one["name"], one["version"]): one for one in answer["model_stats"]}
    shown = fleet.shown().intersection(entries)
    return {
        "model_stats": [
            {"name": name, "version": version, **_fields(_ENTRY, entries[name, version]), "memory_usage": []}
            for name, version in shown
        ]
    }


def _page(worker: int, answer: Any) -> tuple[str, str]:
    """One worker's page of metrics, by the number that the keeper has for it, without lines that no collector reads:
    one such line would keep it from the pages of all. Raises whatever makes it unreadable."""
    text = text_of(answer, longest=_PAGE_CHARACTERS)
    text.encode()
    return str(worker), "\n".join(filter(_is_read, text.split("\n")))


def _is_read(line: str) -> bool:
    """Whether collectors read a line of a page of metrics."""
    found = _LINE.fullmatch(line) if len(line) <= _LINE_CHARACTERS else None
    if found is None or not found[1]:
        return found is not None
    names = _TEXTS.sub("", found[1]).split(",")
    different = {f"exported_{name}" if name == f"{_PROCESS}=" else name for name in names}
    return len(different) == len(names)


def client(fields: Any, manages: Callable[[str], bool] | None = None) -> Actor:
    """The client, or the model, for which a worker acts: never the operator."""
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError("an actor without fields")
    return Actor("client", **{name: text_of(fields.get(name, "")) for name in _FIELDS}, manages=manages)


def text_of(value: Any, longest: int | None = _TEXT_BYTES) -> str:
    if not isinstance(value, str) or (longest is not None and len(value) > longest):
        raise InvalidArgumentError("a text is expected, and not a long one")
    return value


def _worker(value: Any, fleet: Fleet) -> int:
    if not isinstance(value, int) or not 0 <= value < len(fleet):
        raise InvalidArgumentError("there is no such worker")
    return value


def _number(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidArgumentError("a number is expected")
    return value


def _files(value: Any) -> dict[str, bytes] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidArgumentError("files are expected by their paths")
    try:
        return {text_of(path): base64.b64decode(text_of(content, longest=None)) for path, content in value.items()}
    except binascii.Error as error:
        raise InvalidArgumentError(f"the content of a file cannot be read: {error}") from error
