"""A worker's process replaced by one that lies, floods and asks for what is not its own: the keeper goes on."""

import json
import os
import pickle
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from repoagent_server.access.access_file import AccessFile
from repoagent_server.grpc.response import statistics_message
from repoagent_server.processes import calls
from repoagent_server.processes import fleet as fleet_module
from repoagent_server.processes.builder import FleetBuilder
from repoagent_server.processes.calls import Calls, Ended
from repoagent_server.processes.desk import Desk
from repoagent_server.processes.fleet import Fleet
from repoagent_server.processes.versions import Handed
from repoagent_server.processes.worker import WorkerCore
from repoagent_server.program import keeper as keeper_program
from repoagent_server.program.options import ServeOptions
from repoagent_server.program.shared_settings import SharedSettings
from repoagent_server.shared.core import Core as FrontEndsCore

from repoagent.audit import NO_AUDIT, Actor, current_actor
from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.loader.settings import AttestOptions, AuditOptions
from repoagent.serving.backends.python.process.memory import sealed_file
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring import prometheus
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer

ASK, ANSWER, RELEASE = 10, 11, 14


class Keeper:
    """The keeper's end of a socket, and the raw other end, which a hostile worker has."""

    def __init__(self, *, start: bool = True) -> None:
        ours, self.raw = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.gate = threading.Event()
        self.ended: list[str] = []
        self.over = threading.Event()
        answers: dict[str, Callable[..., Any]] = {
            "double": lambda value: value * 2,
            "wait": lambda: self.gate.wait(30),
            "refuse": self._refuse,
        }
        self.calls = Calls(ours, answers, self._end, "worker 0")
        if start:
            self.calls.start()

    def _end(self, why: str) -> None:
        self.ended.append(why)
        self.over.set()

    def _refuse(self) -> None:
        raise UnavailableError("not now")

    def send(self, kind: int, body: Any) -> None:
        text = json.dumps([body, None, [], [], []]).encode()
        self.raw.send(bytes([kind, 0]) + len(text).to_bytes(4, "little") + text)

    def receive(self) -> Any:
        packet = self.raw.recv(1 << 16)
        return json.loads(packet[6 : 6 + int.from_bytes(packet[2:6], "little")])[0]


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.gate.set()
    made.raw.close()
    assert made.over.wait(30)


def test_calls_and_refusals(keeper: Keeper) -> None:
    keeper.send(ASK, [7, "double", [21]])
    assert keeper.receive() == [7, None, 42]
    keeper.send(ASK, [8, "refuse", []])
    assert keeper.receive() == [8, UnavailableError.code, "not now"]
    keeper.send(ASK, [9, "double", []])
    number, code, text = keeper.receive()
    assert (number, code) == (9, RepoAgentError.code)
    assert "TypeError" in text
    assert not keeper.ended


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        [1, "double"],
        [1, "no such call", []],
        [1, None, []],
        [1, "double", {"a": 1}],
        ["x" * 100, "double", [1]],
        [float("inf"), "double", [1]],
    ],
    ids=["nothing", "empty", "short", "unknown", "no-name", "no-list", "no-number", "no-end"],
)
def test_a_call_that_makes_no_sense_ends_the_worker(keeper: Keeper, body: Any) -> None:
    keeper.send(ASK, body)
    assert keeper.over.wait(30)
    assert "broke the rules" in keeper.ended[0]


@pytest.mark.parametrize("body", [[float("inf"), None, 1], [1, float("inf"), "no"], [1, 5, float("nan")]])
def test_an_answer_with_numbers_without_end_ends_the_worker_or_fails(keeper: Keeper, body: Any) -> None:
    waiting = keeper.calls.begin("anything")
    keeper.send(ANSWER, body)
    with pytest.raises(RepoAgentError):
        waiting.result(30)


def test_bytes_that_are_no_message_end_the_worker(keeper: Keeper) -> None:
    keeper.raw.send(b"\xff" * 100)
    assert keeper.over.wait(30)
    assert "broke the rules" in keeper.ended[0]


def test_what_many_clients_ask_at_once_does_not_end_their_worker(keeper: Keeper) -> None:
    """Loads wait for agents, and each front end has as many as 1,024 of them wait."""
    for number in range(100):
        keeper.send(ASK, [number, "wait", []])
    keeper.send(ASK, [100, "double", [21]])
    assert keeper.receive() == [100, None, 42]
    assert not keeper.ended


def test_calls_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_AT_ONCE", 2)
    made = Keeper()
    for number in range(3):
        made.send(ASK, [number, "wait", []])
    assert made.receive() == [
        2,
        UnavailableError.code,
        "2 calls of one process, or 1073741824 bytes of them, wait already",
    ]
    made.gate.set()
    assert sorted(made.receive()[0] for _ in range(2)) == [0, 1]
    made.send(ASK, [3, "double", [21]])
    assert made.receive() == [3, None, 42]
    assert not made.ended
    made.raw.close()
    assert made.over.wait(30)


def test_memory_without_end_ends_the_worker(keeper: Keeper) -> None:
    """Each part of it takes a descriptor of the keeper."""
    for number in range(1, 70):
        text = json.dumps([None, None, [], [], [[number, 4096]]]).encode()
        descriptor = sealed_file(4096)
        try:
            socket.send_fds(keeper.raw, [bytes([RELEASE, 0]) + len(text).to_bytes(4, "little") + text], [descriptor])
        except OSError:
            break
        finally:
            os.close(descriptor)
    assert keeper.over.wait(30)
    assert "more than 64 segments" in keeper.ended[0]


def test_a_message_that_is_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MESSAGE_BYTES", 1 << 16)
    made = Keeper()
    with pytest.raises(InvalidArgumentError, match="at most 65536 bytes"):
        made.calls.call("load", "x" * (1 << 17), timeout=30)
    made.calls.begin("small")
    assert made.receive()[1:] == ["small", []]
    assert not made.ended
    made.raw.close()
    assert made.over.wait(30)


def test_an_answer_that_nobody_asked_for_changes_nothing(keeper: Keeper) -> None:
    keeper.send(ANSWER, [12345, None, "hello"])
    keeper.send(ASK, [1, "double", [2]])
    assert keeper.receive() == [1, None, 4]


def test_who_waits_for_a_worker_that_goes_is_told(keeper: Keeper) -> None:
    waiting = keeper.calls.begin("anything")
    keeper.raw.close()
    with pytest.raises(Ended, match="worker 0 has ended"):
        waiting.result(30)
    with pytest.raises(Ended):
        keeper.calls.call("anything")


def test_a_worker_that_does_not_answer_is_not_waited_for(keeper: Keeper) -> None:
    with pytest.raises(Ended, match="has not answered 'anything'"):
        keeper.calls.call("anything", timeout=0.01)


class Core:
    """Records who had what loaded."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, Actor]] = []

    def ready(self) -> bool:
        return True

    def load(self, name: str, **_: Any) -> Any:
        self.loads.append((name, current_actor()))
        raise UnavailableError("no")

    load_on_demand = load


class Audit:
    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, Any], Actor]] = []

    def note(self, event: str, _result: str, what: Mapping[str, Any], actor: Actor) -> None:
        self.lines.append((event, what, actor))


RUNS = cast(Fleet, SimpleNamespace(stopping=False))


@pytest.fixture
def desk() -> tuple[dict[str, Any], Core, Audit]:
    core, audit = Core(), Audit()
    made = Desk(cast(ServingCore, core), cast(Any, audit), allow_load_parameters=True)
    return made.answers(RUNS, lambda: 0), core, audit


ACTOR = [1, {"client": "mallory", "by": "operator", "via": "http"}, False]


def test_a_worker_never_acts_as_the_operator(desk: tuple[dict[str, Any], Core, Audit]) -> None:
    answers, core, _ = desk
    with pytest.raises(UnavailableError):
        answers["load"](ACTOR, "m", None, None, None)
    with pytest.raises(UnavailableError):
        answers["demand"](ACTOR, "m")
    found = [(name, actor.by, actor.client) for name, actor in core.loads]
    assert found == [("m", "client", "mallory"), ("m", "on-demand", "mallory")]


@pytest.mark.parametrize(
    "arguments",
    [
        (None, "m", None, None, None),
        ([1, {}], "m", None, None, None),
        ([1, None, False], "m", None, None, None),
        ([1, {"client": 7}, False], "m", None, None, None),
        (ACTOR, 7, None, None, None),
        (ACTOR, "m" * 5000, None, None, None),
        (ACTOR, "m", 7, None, None),
        (ACTOR, "m", None, ["file"], None),
        (ACTOR, "m", None, {"a": "not base64!"}, None),
        (ACTOR, "m", None, None, "1"),
        (ACTOR, "m", None, None, True),
    ],
)
def test_a_load_of_nonsense_reaches_no_core(desk: tuple[dict[str, Any], Core, Audit], arguments: Any) -> None:
    answers, core, _ = desk
    with pytest.raises(InvalidArgumentError):
        answers["load"](*arguments)
    if arguments[2:] == (None, None, None):
        with pytest.raises(InvalidArgumentError):
            answers["demand"](*arguments[:2])
    assert not core.loads


@pytest.mark.parametrize(("config", "files"), [("{}", None), ("{}", {"file:1/model.py": ""}), (None, {})])
def test_a_worker_brings_no_model_of_its_own_unless_clients_may(config: Any, files: Any) -> None:
    core = Core()
    desk = Desk(cast(ServingCore, core), cast(Any, Audit()), allow_load_parameters=False)
    with pytest.raises(UnsupportedError, match="--allow-load-parameters"):
        desk.answers(RUNS, lambda: 0)["load"](ACTOR, "m", config, files, None)
    assert not core.loads


@pytest.mark.parametrize(
    ("event", "result"),
    [
        *(("server", "started"), ("settings", "accepted"), ("unload", "unloaded"), ("decrypted", ""), (7, "denied")),
        *(("load", "loaded"), ("load", "started"), ("load", 7), ("denied", "refused"), ("denied", [])),
    ],
)
def test_a_worker_records_only_what_front_ends_record(
    desk: tuple[dict[str, Any], Core, Audit], event: Any, result: Any
) -> None:
    """As a note, of which there are so many a second: anyone who is denied makes one."""
    answers, _, audit = desk
    with pytest.raises(InvalidArgumentError):
        answers["audit"](event, result, {}, {})
    answers["audit"]("denied", "denied", {"route": "/v2", "count": 3}, {"client": "a"})
    answers["audit"]("load", "refused", {}, {"client": "b"})
    assert audit.lines == [
        ("denied", {"route": "/v2", "count": 3}, Actor("client", client="a")),
        ("load", {}, Actor("client", client="b")),
    ]


@pytest.mark.parametrize("call", ["load", "unload", "demand", "link"])
def test_what_is_audited_or_heard_by_others_has_a_pace(
    desk: tuple[dict[str, Any], Core, Audit], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A worker that had models loaded that there are not wrote lines of the audit log as fast as the disk took them."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    for _ in range(300):
        with suppress(Exception):
            desk[0][call](None)
    assert pauses[:99] == [0.0] * 99
    assert sum(pause > 0 for pause in pauses) >= 200
    assert pauses[-1] == pytest.approx(2.0)


def test_a_worker_changes_nothing_while_the_server_stops() -> None:
    core = Core()
    desk = Desk(cast(ServingCore, core), cast(Any, Audit()), allow_load_parameters=False)
    answers = desk.answers(cast(Fleet, SimpleNamespace(stopping=True)), lambda: 0)
    with pytest.raises(UnavailableError, match="is stopping"):
        answers["load"](ACTOR, "m", None, None, None)
    assert not core.loads


def test_what_asks_all_workers_is_done_twice_at_a_time() -> None:
    """Each worker's answer may be long, and a worker could ask four thousand times at once."""
    asked, gate = threading.Semaphore(0), threading.Event()

    def ask_all(*_: Any, **__: Any) -> list[Any]:
        asked.release()
        gate.wait(30)
        return []

    desk = Desk(cast(ServingCore, Core()), cast(Any, Audit()), allow_load_parameters=False)
    answers = desk.answers(cast(Fleet, SimpleNamespace(ask_all=ask_all, stopping=False)), lambda: 0)
    threads = [threading.Thread(target=answers["metrics"]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert [asked.acquire(timeout=wait) for wait in (30, 30, 0.2)] == [True, True, False]
    gate.set()
    for thread in threads:
        thread.join(30)


def test_a_call_that_fails_again_and_again_is_logged_once(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        keeper.send(ASK, [number, "double", []])
        keeper.receive()
    assert caplog.text.count("'double' failed") == 1


def test_there_is_no_call_for_keys_or_files(desk: tuple[dict[str, Any], Core, Audit]) -> None:
    assert set(desk[0]) == {
        *("load", "unload", "statistics", "metrics", "index", "report", "attestation", "ready", "has_model"),
        *("audit", "link", "demand", "offers"),
    }


def test_a_worker_asks_the_keeper_about_all_that_is_not_of_its_own_models() -> None:
    """What front ends ask and ``WorkerCore`` only inherits is answered from the models of this worker alone."""
    asked = {name for name in vars(FrontEndsCore) if not name.startswith("_")}
    assert asked - vars(WorkerCore).keys() == {
        *("live", "metadata", "model_ready", "asks_model", "model_loaded", "model_metadata", "model_config"),
        *("decoupled", "check", "submit"),
    }


def _set(event: threading.Event, _why: str) -> None:
    event.set()


def _answer(answer: Any, *_: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _statistics(model: Any = "m", **fields: Any) -> dict[str, Any]:
    return {"model_stats": [{"name": model, "version": "1", "inference_count": 1, "memory_usage": [], **fields}]}


COUNTED = {"count": 1, "ns": 5}
NO_STATISTICS: list[Any] = [[], 5, None, {}, {"model_stats": 5}, {"model_stats": [5]}]
NO_COUNT: list[Any] = [float("nan"), 10**30, -1, "x" * 5000, "1", None, True, 1.0, [], {}]
NO_BATCHES: list[Any] = [5, None, {"1": {}}, [{}], [5]]
NO_RESPONSES: list[Any] = [5, None, [1], {"x": {}}, {"-1": {}}]
NO_FIELDS: list[dict[str, Any]] = [
    *({"inference_count": lie} for lie in NO_COUNT),
    *({"last_inference": lie} for lie in NO_COUNT),
    *({"inference_stats": {"fail": {"ns": lie}}} for lie in NO_COUNT),
    *({"inference_stats": lie} for lie in (5, None)),
    *({"batch_stats": [{"batch_size": lie}]} for lie in NO_COUNT),
    *({"batch_stats": lie} for lie in NO_BATCHES),
    *({"response_stats": lie} for lie in NO_RESPONSES),
]


class Pair:
    """A fleet of an honest worker and one that answers ``lie`` to ``question``, or raises it."""

    def __init__(self, question: str, truth: Any, lie: Any) -> None:
        self.fleet = Fleet(
            2, "", None, {}, lambda _fleet, _worker: {}, on_missing=lambda _handed, _why: None, deadliest=3
        )
        self.ended = [threading.Event(), threading.Event()]
        self.others = []
        for worker, over, answer in zip(self.fleet._workers, self.ended, (truth, lie), strict=True):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            worker.calls = Calls(ours, {}, partial(_set, over), "worker")
            worker.serves = True
            other = Calls(theirs, {question: partial(_answer, answer)}, lambda _: None, "keeper")
            self.others.append(other)
            for one in (worker.calls, other):
                one.start()

    def close(self) -> None:
        for other, over in zip(self.others, self.ended, strict=True):
            other.close()
            assert over.wait(30)


LIES: list[tuple[str, Any, Any]] = [
    ("running", 2, "many"),
    ("running", 2, None),
    ("running", 2, -2),
    ("running", 2, True),
    ("last_used_ms", 2, 10**300),
    ("last_used_ms", 2, float("nan")),
    ("last_used_ms", 2, "late"),
    ("page", "# HELP a b\na 1\n", 7),
    ("page", "# HELP a b\na 1\n", "# HELP a \ud800\n"),
    ("statistics", _statistics(), _statistics(response_stats={"9" * 5000: {}})),
]
LIES += [("statistics", _statistics(), one) for one in NO_STATISTICS]
LIES += [("statistics", _statistics(), _statistics(**fields)) for fields in NO_FIELDS]


@pytest.mark.parametrize(("question", "truth", "lie"), LIES)
def test_a_worker_that_lies_about_itself_is_ended_and_the_others_count(question: str, truth: Any, lie: Any) -> None:
    pair = Pair(question, truth, lie)
    pair.fleet._shown = {"m": {1: 7}}
    answers = Desk(cast(ServingCore, Core()), cast(Any, Audit()), allow_load_parameters=False).answers(
        pair.fleet, lambda: 0
    )
    asked: dict[str, tuple[Callable[[], Any], Any]] = {
        "running": (lambda: pair.fleet.running(Handed(1, "m", 1, b"", "", fleeting=False)), truth),
        "last_used_ms": (lambda: pair.fleet.last_used_ms(Handed(1, "m", 1, b"", "", fleeting=False)), truth),
        "page": (answers["metrics"], '# HELP a b\na{process="0"} 1\n'),
        "statistics": (lambda: answers["statistics"]("m", ""), truth),
    }
    ask, expected = asked[question]
    assert ask() == expected
    assert pair.ended[1].wait(30)
    assert not pair.ended[0].is_set()
    pair.close()


@pytest.mark.parametrize(
    "line",
    [
        *("no-value", "a x", "a inf 1", "a{ 1", 'a{b="} 1', f'a{{b="{"x" * 70_000}"}} 1', "# HELP", "#"),
        *("a 1.2.3", "a 1.", "a 1e999", f"a {'9' * 400}", "a +NaN", "a -NaN", "a 1 2", "a 0x1", "a 1_0"),
        *('a{b="c"d="e"} 1', 'a{b="c",} 1', "a{} 1", 'a{b="\\x"} 1', 'a{b="c",b="d"} 1', "ab 1", "b 1"),
        *('a{process="c",process="d"} 1', 'a{exported_process="c",process="d"} 1'),
        *("# TYPE a garbage", "# TYPE b gauge", "# TYPE a", "# EOF", "# UNIT a b"),
    ],
)
def test_a_line_that_no_collector_reads_is_left_out(line: str) -> None:
    """It would refuse the metrics of all workers."""
    pair = Pair("page", "# HELP a b\na 1\n", f'# HELP a b\n{line}\na{{c="d"}} 2.5e-05\n')
    desk = Desk(cast(ServingCore, Core()), cast(Any, Audit()), allow_load_parameters=False)
    page = desk.answers(pair.fleet, lambda: 0)["metrics"]()
    assert page == '# HELP a b\na{process="0"} 1\na{process="1",c="d"} 2.5e-05\n'
    pair.close()


@pytest.mark.parametrize("value", [0, -2.25, 1e-7, 1e300, float("inf"), -float("inf"), float("nan"), 123456789.125])
def test_whatever_a_server_writes_of_a_number_is_on_the_page(value: float) -> None:
    pair = Pair("page", "# HELP a b\na 1\n", f"# HELP a b\na {prometheus.number(value)}\n")
    desk = Desk(cast(ServingCore, Core()), cast(Any, Audit()), allow_load_parameters=False)
    page = desk.answers(pair.fleet, lambda: 0)["metrics"]()
    assert page == f'# HELP a b\na{{process="0"}} 1\na{{process="1"}} {prometheus.number(value)}\n'
    pair.close()


ENDLESS: dict[str, Any] = {f"name{number}": 1 for number in range(1000)}


@pytest.mark.parametrize(
    "lie",
    [
        _statistics("of another"),
        _statistics("m" * 5000),
        _statistics(version="2"),
        _statistics(version=1),
        _statistics(7),
        {
            "model_stats": [
                *_statistics()["model_stats"],
                *(_statistics(f"m{n}")["model_stats"][0] for n in range(1000)),
            ]
        },
        {"model_stats": _statistics()["model_stats"] * 1000},
        _statistics(**ENDLESS, memory_usage=[{"type": "x" * 5000}], model_stats=[]),
        _statistics(inference_stats={**ENDLESS, "success": {**COUNTED, **ENDLESS}}),
        _statistics(batch_stats=[{"batch_size": 1, "compute_infer": COUNTED, **ENDLESS}]),
        _statistics(response_stats={"0": {"success": COUNTED, **ENDLESS}}),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_statistics_are_of_versions_that_the_worker_was_given_and_of_what_is_counted(lie: Any, first: bool) -> None:
    """What it was not given may be another owner's name, or names without end; the first answer names the fields."""
    pair = Pair("statistics", *((lie, _statistics()) if first else (_statistics(), lie)))
    pair.fleet._shown = {"m": {1: 7}}
    desk = Desk(cast(ServingCore, Core()), cast(Any, Audit()), allow_load_parameters=False)
    found = desk.answers(pair.fleet, lambda: 0)["statistics"]("", "")
    (entry,) = found["model_stats"]
    assert (entry["name"], entry["version"]) == ("m", "1")
    assert entry["inference_count"] in (1, 2)
    assert "name" not in str(entry).replace("'name'", "")
    assert len(str(entry)) < 1000
    assert statistics_message(found).model_stats[0].inference_count == entry["inference_count"]
    assert not any(one.is_set() for one in pair.ended)
    pair.close()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("settings", (None, {})),
        ("settings", ({"setting": "log"}, {})),
        ("settings", ({"setting": "file", "change": {}}, {})),
        ("settings", ({"setting": "log", "change": {"file": "/etc/x"}}, {})),
        ("settings", ({"setting": "log", "change": {"verbose_level": -1}}, {})),
        ("settings", ({"setting": "log", "change": {"info": 1}}, {})),
        ("settings", ({"setting": "log", "change": {"format": "x"}}, {})),
        ("settings", ({"setting": "trace", "model": 7, "change": {}}, {})),
        ("settings", ({"setting": "trace", "model": "", "change": {"trace_file": "/etc/x"}}, {})),
        ("settings", ({"setting": "trace", "model": "", "change": {"trace_level": [7]}}, {})),
        ("register", ("r", "k", "0", 1)),
        ("register", ("r", "k", 0, True)),
        ("register", (7, "k", 0, 1)),
        ("unregister", (7,)),
    ],
)
def test_a_change_of_nonsense_is_made_in_no_worker(call: str, arguments: Any) -> None:
    pair = Pair("log", None, None)
    shared = SharedSettings(pair.fleet, _traced(), {})
    with pytest.raises((InvalidArgumentError, UnsupportedError)):
        shared.answers(lambda: 0)[call](*arguments)
    assert not shared._made
    pair.close()


def _traced() -> ServingCore:
    """As much of a core as changes of settings need."""
    return cast(ServingCore, SimpleNamespace(tracer=Tracer(TraceSettings()), audit=NO_AUDIT))


def test_what_one_worker_refuses_is_taken_back_in_the_others() -> None:
    pair = Pair("register", None, None)
    calls: list[tuple[int, str]] = []

    def ask(index: int, name: str, *_: Any, timeout: float) -> None:
        assert timeout
        calls.append((index, name))
        if (index, name) == (2, "register"):
            raise UnavailableError("no")

    fleet = cast(Any, pair.fleet)
    fleet.ask, fleet.serving = ask, lambda: [0, 1, 2]
    shared = SharedSettings(pair.fleet, _traced(), {})
    with pytest.raises(UnavailableError):
        shared.answers(lambda: 0)["register"]("r", "k", 0, 1)
    assert calls == [(1, "register"), (2, "register"), (1, "unregister")]
    assert not shared._made
    pair.close()


def test_a_worker_that_does_not_answer_to_a_change_is_ended() -> None:
    """It would go on without the change if it came back."""
    pair = Pair("register", None, None)
    ended: list[int] = []

    def ask(index: int, *_: Any, timeout: float) -> None:
        if index == 1:
            raise Ended(f"worker 1 has not answered for {timeout} seconds")

    fleet = cast(Any, pair.fleet)
    fleet.ask, fleet.serving, fleet.end = ask, lambda: [0, 1, 2], ended.append
    SharedSettings(pair.fleet, _traced(), {}).answers(lambda: 0)["register"]("r", "k", 0, 1)
    assert ended == [1]
    pair.close()


def test_a_worker_that_does_not_take_up_the_rules_of_clients_is_ended(tmp_path: Path) -> None:
    pair = Pair("access", None, UnavailableError("no"))
    path = tmp_path / "access.toml"
    path.write_text("")
    with AccessFile(path) as file:
        SharedSettings(pair.fleet, _traced(), {}).follow(file)
        path.write_text("# changed")
        assert pair.ended[1].wait(30)
    assert not pair.ended[0].is_set()
    pair.close()


def test_a_change_that_a_worker_brings_while_it_leaves_is_made_in_the_one_that_has_its_place() -> None:
    pair = Pair("register", None, None)
    asked: list[int] = []
    number = 0
    fleet = cast(Any, pair.fleet)
    fleet.ask, fleet.serving = lambda index, *_, timeout: asked.append(index), lambda: [0, 1, -1]
    register = SharedSettings(pair.fleet, _traced(), {}).answers(lambda: number)["register"]
    number = -1
    register("r", "k", 0, 1)
    assert asked == [0, 1]
    pair.close()


def test_a_worker_that_cannot_be_started_now_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair("running", 1, 1)
    tries = threading.Semaphore(0)

    def popen(*_: Any, **__: Any) -> Any:
        tries.release()
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(fleet_module, "_SLOWEST_RESTART_SECONDS", 0.0)
    pair.fleet._revive(pair.fleet._workers[0], 0.0)
    assert tries.acquire(timeout=30)
    assert tries.acquire(timeout=30)
    pair.fleet.close()
    pair.close()


def test_workers_get_no_reference_of_a_key() -> None:
    options = ServeOptions(
        model_repository=("s3://REPOSITORY",),
        audit=AuditOptions(file=Path("LOG"), key="file:AUDIT-KEY"),
        attest=AttestOptions(key="file:ATTEST-KEY"),
        agent_policy=Path("POLICY"),
    )
    given = pickle.dumps(keeper_program._for_workers(options))
    for secret in (b"REPOSITORY", b"AUDIT-KEY", b"ATTEST-KEY", b"POLICY"):
        assert secret not in given


class Lies:
    """A fleet whose worker has made nonsense of a model."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.closed = 0

    def hand_over(self, _: str) -> None:
        """The worker is of the keeper's user."""

    def build(self, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
        return cast(Any, None), self.answer

    def prepare(self, *, calls: bool) -> None:
        """There is one worker."""

    def stateful(self, _: str) -> bool:
        return False

    def close_version(self, _: Any) -> None:
        self.closed += 1


@pytest.mark.parametrize("answer", [{}, {"config": "zz"}, {"config": "ffff"}, {"config": 7}])
def test_a_lie_about_a_built_version_is_refused_and_the_version_closed(answer: dict[str, Any], tmp_path: Any) -> None:
    from repoagent.storage.files.files import DirectoryFiles

    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    fleet = Lies(answer)
    builder = FleetBuilder(BackendRegistry({}, {}), fleet=cast(Fleet, fleet))
    with pytest.raises(RepoAgentError):
        builder.build("m", ModelConfig(backend="onnxruntime"), DirectoryFiles(tmp_path), [1])
    assert fleet.closed == 1
