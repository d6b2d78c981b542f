"""The rate limiter by itself, and executions of models that wait for it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import read_text
from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.serving.assembly import RateLimitMode
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.rate_limiter import Demand, RateLimiter, RateLimiterResource, Ticket

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]


def demand(text: str, device: int = 0) -> Demand:
    config = read_text(f"instance_group {{ rate_limiter {{ {text} }} }}")
    found = Demand.of(config.instance_group[0].rate_limiter, device)
    assert found is not None
    return found


def needs(count: int, *, name: str = "R", priority: int = 0, device: int = 0, everywhere: bool = False) -> Demand:
    flag = "global: true" if everywhere else ""
    return demand(f'resources {{ name: "{name}" count: {count} {flag} }} priority: {priority}', device)


class Execution:
    """One that holds its ticket from :meth:`start` to :meth:`end`; ``running`` says that it does."""

    def __init__(self, ticket: Ticket, order: list[str] | None = None, name: str = "") -> None:
        self.ticket = ticket
        self.running = threading.Event()
        self.error: Exception | None = None
        self._end = threading.Event()
        self._order = order
        self._name = name
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self.ticket.held():
                if self._order is not None:
                    self._order.append(self._name)
                self.running.set()
                assert self._end.wait(60)
        except UnavailableError as error:
            self.error = error

    def start(self, *, waits: bool = False) -> "Execution":
        limiter = self.ticket._limiter
        before = len(limiter._line)
        self._thread.start()
        while waits and len(limiter._line) == before:  # Until it stands in the line.
            pass
        if not waits:
            assert self.running.wait(60)
        return self

    def end(self) -> None:
        self._end.set()
        self._thread.join(60)


def test_a_group_without_resources_demands_nothing() -> None:
    config = read_text("instance_group { rate_limiter { priority: 3 } }")
    assert Demand.of(config.instance_group[0].rate_limiter, 0) is None


def test_there_is_as_much_as_the_neediest_needs() -> None:
    limiter = RateLimiter()
    large, small = limiter.ticket(needs(4)), limiter.ticket(needs(2))
    other = limiter.ticket(needs(2))
    first, second = Execution(small).start(), Execution(other).start()
    third = Execution(large).start(waits=True)
    first.end()
    assert not third.running.is_set()
    second.end()
    assert third.running.wait(60)
    third.end()


def test_devices_have_their_own_and_global_resources_are_one_for_all() -> None:
    limiter = RateLimiter()
    near, far = limiter.ticket(needs(1, device=0)), limiter.ticket(needs(1, device=1))
    first, second = Execution(near).start(), Execution(far).start()
    first.end()
    second.end()
    one, two = (limiter.ticket(needs(1, name="G", device=device, everywhere=True)) for device in (0, 1))
    third = Execution(one).start()
    fourth = Execution(two).start(waits=True)
    assert not fourth.running.is_set()
    third.end()
    assert fourth.running.wait(60)
    fourth.end()


def test_the_next_is_who_had_the_fewest_executions_by_its_priority() -> None:
    limiter = RateLimiter()
    often, rarely = limiter.ticket(needs(1, priority=1)), limiter.ticket(needs(1, priority=3))
    for ticket in (often, often, rarely):
        Execution(ticket).start().end()
    order: list[str] = []
    holder = Execution(limiter.ticket(needs(1))).start()
    # Two executions of priority 1 are fewer than one of priority 3.
    waiting = [Execution(rarely, order, "rarely"), Execution(often, order, "often")]
    for execution in waiting:
        execution.start(waits=True)
    holder.end()
    assert waiting[1].running.wait(60)
    waiting[1].end()
    assert waiting[0].running.wait(60)
    waiting[0].end()
    assert order == ["often", "rarely"]


def test_who_gives_back_and_goes_on_stands_in_the_line_before_others_are_granted() -> None:
    limiter = RateLimiter()
    often, rarely = limiter.ticket(needs(1, priority=1)), limiter.ticket(needs(1, priority=9))
    rarely.executions = 1
    assert often.take()
    other = Execution(rarely).start(waits=True)
    for _ in range(8):
        often.executions += 1
        assert often.take()
        assert not other.running.is_set()
    often.give()
    assert other.running.wait(60)
    other.end()


def test_nobody_passes_who_waits_for_much() -> None:
    limiter = RateLimiter([RateLimiterResource("R", 4)])
    large, small, other = limiter.ticket(needs(4)), limiter.ticket(needs(1)), limiter.ticket(needs(1))
    holder = Execution(small).start()
    much = Execution(large).start(waits=True)
    little = Execution(other).start(waits=True)
    assert not little.running.is_set()
    holder.end()
    assert much.running.wait(60)
    much.end()
    assert little.running.wait(60)
    little.end()


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ([RateLimiterResource("R", 1)], 1),
        ([RateLimiterResource("R", 9, device=1)], 0),
        ([RateLimiterResource("other", 9)], 0),
        ([RateLimiterResource("R", 2, device=0), RateLimiterResource("R", 1)], 2),
    ],
)
def test_what_could_never_run_is_refused_in_tritons_words(given: list[RateLimiterResource], limit: int) -> None:
    limiter = RateLimiter(given)
    with pytest.raises(InvalidArgumentError) as caught:
        limiter.ticket(needs(3))
    assert str(caught.value) == (
        f'Resource count for "R" is limited to {limit} which will prevent scheduling of one or more model instances, '
        "the minimum required count is 3"
    )


def test_a_resource_is_global_or_it_is_not() -> None:
    limiter = RateLimiter()
    ticket = limiter.ticket(needs(1))
    with pytest.raises(InvalidArgumentError, match='"R" is present as both global and device-specific resource'):
        limiter.ticket(needs(1, everywhere=True))
    ticket.close()
    limiter.ticket(needs(1, everywhere=True))


def test_who_waits_is_told_when_the_instance_goes() -> None:
    limiter = RateLimiter()
    one, two = limiter.ticket(needs(1)), limiter.ticket(needs(1))
    holder = Execution(one).start()
    waiting = Execution(two).start(waits=True)
    two.close()
    waiting.end()
    assert isinstance(waiting.error, UnavailableError)
    holder.end()
    Execution(one).start().end()


# -- models ------------------------------------------------------------------------------------------------------------

LIMITED = 'backend: "scripted" instance_group { rate_limiter { resources { name: "R" count: 1 } } }'


@pytest.fixture
def pair(write_model: ModelWriter) -> None:
    for name, offset in (("a", "1"), ("b", "2")):
        write_model(name, {1: offset}, LIMITED)


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("mode", list(RateLimitMode))
def test_two_models_that_need_the_same_run_one_after_the_other_only_if_the_limiter_is_on(
    new_core: CoreMaker, request_of: RequestMaker, scripted: Any, new_sender: Any, mode: RateLimitMode
) -> None:
    core = new_core(rate_limit=mode, startup_models=("a", "b"))
    first, second = sorted(scripted.runners, key=lambda runner: runner.offset)
    first.hold = threading.Event()
    senders = [new_sender(), new_sender()]
    core.submit(request_of("a", sender=senders[0]))
    assert first.running.acquire(timeout=60)
    core.submit(request_of("b", sender=senders[1]))
    if mode is RateLimitMode.OFF:
        senders[1].final()
    else:
        assert senders[1].sent.empty()
        assert not second.calls
    first.hold.set()
    senders[0].final()
    if mode is not RateLimitMode.OFF:
        senders[1].final()
    assert second.calls == 1


@pytest.mark.usefixtures("pair")
def test_a_caller_who_waits_gets_his_answer_and_a_reload_needs_no_more_than_before(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    resources = (RateLimiterResource("R", 1),)
    core = new_core(rate_limit=RateLimitMode.EXECUTION_COUNT, rate_limit_resources=resources, startup_models=("a",))
    assert float(core.infer(request_of("a")).outputs["y"].array[0, 0]) == 2
    write_model("a", {1: "5"}, LIMITED)
    core.load("a")
    assert float(core.infer(request_of("a")).outputs["y"].array[0, 0]) == 6


BATCHING = """
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
KINDS = {
    "one by one": "",
    "dynamic": BATCHING + "dynamic_batching { }",
    "delayed": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 1 }",
    "sequence": BATCHING + "sequence_batching { }",
}
EVERY_KIND = pytest.mark.parametrize("kind", list(KINDS))


class Crowd:
    """Model ``b`` waits for what ``a`` has, until :meth:`let_go`."""

    def __init__(self, core: ServingCore, first: Any, second: Any, request_of: RequestMaker, new_sender: Any) -> None:
        self.core = core
        self.first = first
        self.second = second
        self.new_sender = new_sender
        self._request_of = request_of
        self._holder = new_sender()
        first.hold = threading.Event()
        core.submit(request_of("a", sender=self._holder))
        assert first.running.acquire(timeout=60)

    def request(self, **fields: Any) -> InferRequest:
        return self._request_of("b", correlation_id=1, sequence_start=True, **fields)

    def submit(self, **fields: Any) -> tuple[InferRequest, Any]:
        sender = self.new_sender()
        request = self.request(sender=sender, **fields)
        self.core.submit(request)
        return request, sender

    def wait_for_the_line(self) -> None:
        limiter = self.core._context.builder.limiter
        assert limiter is not None
        while not limiter._line:  # Until the thread of 'b' stands in it.
            pass

    def let_go(self) -> None:
        self.first.hold.set()
        assert self._holder.final(60).error is None


@pytest.fixture
def crowd(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> Callable[[str], Crowd]:
    def make(kind: str) -> Crowd:
        write_model("a", {1: "1"}, LIMITED)
        write_model("b", {1: "2"}, LIMITED + KINDS[kind])
        core = new_core(rate_limit=RateLimitMode.EXECUTION_COUNT, startup_models=("a", "b"))
        first, second = sorted(scripted.runners, key=lambda runner: runner.offset)
        return Crowd(core, first, second, request_of, new_sender)

    return make


class Order:
    """Takes answers and notes whose they are."""

    def __init__(self, name: str, answered: list[str], most: threading.Semaphore) -> None:
        self._name = name
        self._answered = answered
        self._most = most

    def send(self, _response: object, final: bool) -> None:
        if final:
            self._answered.append(self._name)
            self._most.release()


@pytest.mark.parametrize(("kind", "together"), [("one by one", 1), ("dynamic", 1), ("dynamic", 2)])
@pytest.mark.parametrize(
    ("priorities", "shares"), [((1, 2), (6, 3)), ((2, 1), (3, 6)), ((1, 1), (6, 6)), ((1, 3), (9, 3))]
)
def test_busy_models_share_executions_by_their_priorities(
    new_core: CoreMaker,
    write_model: ModelWriter,
    request_of: RequestMaker,
    scripted: Any,
    new_sender: Any,
    kind: str,
    together: int,
    priorities: tuple[int, int],
    shares: tuple[int, int],
) -> None:
    """P27: two busy models took turns whatever their priorities."""
    write_model("holder", {1: "0"}, LIMITED)
    batching = KINDS[kind].replace("max_batch_size: 4", f"max_batch_size: {together}")
    for name, priority in zip("ab", priorities, strict=True):
        limited = LIMITED.replace("count: 1 }", f"count: 1 }} priority: {priority}")
        write_model(name, {1: "1"}, limited + batching)
    core = new_core(rate_limit=RateLimitMode.EXECUTION_COUNT, startup_models=("holder", "a", "b"))
    (holder,) = (runner for runner in scripted.runners if not runner.offset)
    holder.hold = threading.Event()
    core.submit(request_of("holder", sender=new_sender()))
    assert holder.running.acquire(timeout=60)
    answered: list[str] = []
    done = threading.Semaphore(0)
    most = 2 * max(shares) * together
    for name in "ab":
        for _ in range(most):
            core.submit(request_of(name, sender=Order(name, answered, done)))
    limiter = core._context.builder.limiter
    assert limiter is not None
    while len(limiter._line) < 2:  # Until both stand in it.
        pass
    holder.hold.set()
    assert all(done.acquire(timeout=60) for _ in range(2 * most))
    first = answered[: sum(shares) * together : together]
    assert (first.count("a"), first.count("b")) == shares


@EVERY_KIND
def test_a_request_that_waits_is_answered_as_soon_as_it_is_cancelled(crowd: Callable[[str], Crowd], kind: str) -> None:
    subject = crowd(kind)
    request, sender = subject.submit()
    subject.wait_for_the_line()
    subject.core.cancel(request)
    assert isinstance(sender.final(60).error, CancelledError)
    subject.let_go()
    assert subject.submit()[1].final(60).error is None
    assert subject.second.calls == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sequence"])
def test_a_request_that_waits_is_answered_as_soon_as_its_time_is_over(crowd: Callable[[str], Crowd], kind: str) -> None:
    subject = crowd(kind)
    _, other = subject.submit()
    subject.wait_for_the_line()
    _, sender = subject.submit(timeout_us=1000)
    assert str(sender.final(60).error) == "Request timeout expired"
    subject.let_go()
    assert other.final(60).error is None
    assert subject.second.calls == 1


def test_a_caller_who_waits_gives_up_in_time(crowd: Callable[[str], Crowd]) -> None:
    subject = crowd("one by one")
    with pytest.raises(UnavailableError, match="Request timeout expired"):
        subject.core.infer(subject.request(timeout_us=1000))
    request = subject.request()
    errors: list[Exception] = []

    def call() -> None:
        with pytest.raises(CancelledError) as caught:
            subject.core.infer(request)
        errors.append(caught.value)

    caller = threading.Thread(target=call)
    caller.start()
    subject.wait_for_the_line()
    request.cancel()
    caller.join(60)
    assert len(errors) == 1
    subject.let_go()


def test_what_comes_while_an_execution_waits_shares_it(crowd: Callable[[str], Crowd]) -> None:
    subject = crowd("dynamic")
    senders = [subject.submit()[1]]
    subject.wait_for_the_line()
    senders += [subject.submit()[1] for _ in range(3)]
    subject.let_go()
    assert all(sender.final(60).error is None for sender in senders)
    assert subject.second.calls == 1


def test_a_batch_that_waits_for_more_requests_holds_nothing(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, new_sender: Any
) -> None:
    write_model("a", {1: "1"}, LIMITED)
    write_model("b", {1: "2"}, LIMITED + KINDS["delayed"].replace("microseconds: 1", "microseconds: 3600000000"))
    core = new_core(rate_limit=RateLimitMode.EXECUTION_COUNT, startup_models=("a", "b"))
    waiting, sender = new_sender(), new_sender()
    core.submit(request_of("b", sender=waiting))
    for _ in range(10):
        core.submit(request_of("a", sender=sender))
        assert sender.final(60).error is None
    for _ in range(3):
        core.submit(request_of("b", sender=waiting))
    for _ in range(4):
        assert waiting.final(60).error is None


def test_an_unload_does_not_wait_for_the_limiter(crowd: Callable[[str], Crowd]) -> None:
    subject = crowd("one by one")
    _, sender = subject.submit()
    subject.wait_for_the_line()
    served = subject.core._table.find("b", "")
    served.close()
    assert "is unloaded" in str(sender.final(60).error)
    subject.let_go()


def test_a_model_that_needs_more_than_there_is_is_refused(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("a", {1: "1"}, LIMITED.replace("count: 1", "count: 2"))
    resources = (RateLimiterResource("R", 1),)
    core = new_core(rate_limit=RateLimitMode.EXECUTION_COUNT, rate_limit_resources=resources)
    with pytest.raises(InvalidArgumentError, match=r'Resource count for "R" is limited to 1 which will prevent'):
        core.load("a")
