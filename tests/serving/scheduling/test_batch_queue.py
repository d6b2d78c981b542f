from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.config import ModelConfig, normalize, read_text
from repoagent.errors import CancelledError, UnavailableError
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent.serving.scheduling.batch_queue import BatchQueue, BatchRule, BatchSettings
from repoagent.serving.scheduling.steps import Step

US = 1000


def request(name: str = "", rows: int = 1, width: int = 4, **fields: Any) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.zeros((rows, width), np.float32))}, id=name, **fields))


def ids(step: Step) -> str:
    return "".join(item.asked.id for item in step.batch)


@pytest.fixture
def queue_of(config_of: Callable[..., ModelConfig]) -> Callable[..., BatchQueue]:
    def make(settings: str = "", max_batch_size: int = 8, dims: str = "4") -> BatchQueue:
        config = config_of(f"max_batch_size: {max_batch_size} dynamic_batching {{ {settings} }}", dims)
        return BatchQueue(BatchSettings.of(config), BatchRule(config))

    return make


QueueMaker = Callable[..., BatchQueue]


def test_without_a_delay_whatever_waits_goes(queue_of: QueueMaker) -> None:
    queue = queue_of()
    for name in "abc":
        queue.put(request(name), 0)
    assert ids(queue.next(0)) == "abc"
    assert len(queue) == 0
    assert queue.next(0) == Step((), [])


def test_with_a_delay_requests_wait_until_the_oldest_has_waited_for_all_of_it(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100")
    queue.put(request("a"), 0)
    queue.put(request("b"), 60 * US)
    assert queue.next(60 * US) == Step((), [], 100 * US)
    assert queue.next(100 * US - 1) == Step((), [], 100 * US)
    assert ids(queue.next(100 * US)) == "ab"


def test_a_batch_of_a_preferred_size_does_not_wait(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100 preferred_batch_size: [2, 4]")
    for name in "abc":
        queue.put(request(name), 0)
    assert ids(queue.next(0)) == "ab"
    assert queue.next(0).wake_ns == 100 * US
    for name in "defg":
        queue.put(request(name), 1)
    assert ids(queue.next(1)) == "cdef"


def test_when_the_delay_is_over_everything_that_fits_goes_preferred_or_not(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100 preferred_batch_size: 2")
    for name in "abcdefghi":
        queue.put(request(name), 0)
    assert ids(queue.next(100 * US)) == "abcdefgh"


def test_a_request_that_would_exceed_the_largest_preferred_size_sends_those_before_it(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100 preferred_batch_size: 4")
    queue.put(request("a", rows=3), 0)
    queue.put(request("b", rows=2), 0)
    assert ids(queue.next(0)) == "a"
    assert queue.next(0).wake_ns == 100 * US


def test_a_request_larger_than_every_preferred_size_goes_at_once(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100 preferred_batch_size: 2")
    queue.put(request("a", rows=3), 0)
    assert ids(queue.next(0)) == "a"


def test_a_request_of_another_shape_starts_a_batch_of_its_own(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100", dims="-1")
    queue.put(request("a"), 0)
    assert not queue.next(0).batch
    queue.put(request("b"), 0)
    ripe = [queue.ripe]
    queue.put(request("c", width=5), 0)
    assert [*ripe, queue.ripe] == [False, True]
    assert ids(queue.next(0)) == "ab"
    assert queue.next(0).wake_ns == 100 * US


def test_the_queue_is_ripe_when_a_look_may_find_a_batch(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100 preferred_batch_size: 3")
    ripe = []
    for name in "abc":
        queue.put(request(name), 0)
        ripe.append(queue.ripe)
        if name == "a":
            queue.next(0)
    assert ripe == [True, False, True]


def test_a_cancelled_request_is_refused_when_its_turn_comes(queue_of: QueueMaker) -> None:
    queue = queue_of()
    gone = request("a")
    queue.put(gone, 0)
    queue.put(request("b"), 0)
    gone.cancel()
    step = queue.next(0)
    assert ids(step) == "b"
    assert [(item.request, type(item.error)) for item in step.refusals] == [(gone, CancelledError)]


def test_a_request_whose_time_is_over_is_refused_wherever_it_stands(queue_of: QueueMaker) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 100 allow_timeout_override: true }"
    queue = queue_of(policy)
    queue.put(request("a"), 0)
    queue.put(request("b", timeout_us=50), 0)
    queue.put(request("c", timeout_us=5000), 0)
    assert queue.deadline_ns == 50 * US
    assert [(item.request.asked.id, str(item.error)) for item in queue.expire(50 * US)] == [
        ("b", "Request timeout expired")
    ]
    assert queue.deadline_ns == 100 * US
    assert len(queue) == 2
    refused = queue.next(100 * US).refusals
    assert [item.request.asked.id for item in refused] == ["a", "c"]
    assert all(isinstance(item.error, UnavailableError) for item in refused)
    assert queue.deadline_ns is None


def test_a_request_that_was_taken_in_time_is_not_refused_later(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { default_timeout_microseconds: 100 }")
    queue.put(request("a"), 0)
    assert ids(queue.next(0)) == "a"
    assert queue.deadline_ns is None
    assert not queue.expire(200 * US)


def test_delayed_requests_come_after_the_others_of_their_level_and_before_the_next_level(queue_of: QueueMaker) -> None:
    queue = queue_of(
        "priority_levels: 2 default_priority_level: 1 "
        "default_queue_policy { default_timeout_microseconds: 100 timeout_action: DELAY }"
    )
    queue.put(request("a"), 0)
    queue.put(request("b", priority=2), 0)
    queue.put(request("c"), 200 * US)
    assert ids(queue.next(200 * US)) == "cab"


def test_a_time_without_a_default_to_shorten_is_taken_as_asked(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { allow_timeout_override: true }")
    queue.put(request("a", timeout_us=10), 0)
    queue.put(request("b"), 0)
    assert queue.deadline_ns == 10 * US


def test_without_a_policy_a_request_waits_as_long_as_it_wants(queue_of: QueueMaker) -> None:
    queue = queue_of()
    queue.put(request("a", timeout_us=10), 0)
    assert [refusal.request.asked.id for refusal in queue.expire(10 * US)] == ["a"]


def test_a_policy_that_allows_no_override_decides_alone(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { max_queue_size: 5 }")
    queue.put(request("a", timeout_us=10), 0)
    assert queue.deadline_ns is None


def test_a_priority_beyond_the_last_level_means_the_default(queue_of: QueueMaker) -> None:
    queue = queue_of("priority_levels: 3 default_priority_level: 2")
    for name, priority in [("a", 3), ("b", 4), ("c", 0), ("d", 1)]:
        queue.put(request(name, priority=priority), 0)
    assert ids(queue.next(0)) == "dbca"


def test_a_billion_levels_take_no_more_memory_than_requests_that_wait(queue_of: QueueMaker) -> None:
    queue = queue_of("priority_levels: 1000000000 default_priority_level: 1")
    for level in range(1, 2000):
        queue.put(request(priority=level * 1000), 0)
        queue.next(0)
    assert len(queue._levels) <= 65


def test_a_full_level_takes_no_more(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { max_queue_size: 2 }")
    assert [queue.put(request(name), 0) for name in "abc"] == [True, True, False]
    queue.next(0)
    assert queue.put(request("d"), 0)


def test_requests_refused_behind_a_busy_model_do_not_pile_up_in_memory(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { default_timeout_microseconds: 1 }")
    for number in range(1000):
        queue.put(request(), number * 10 * US)
        queue.expire((number + 1) * 10 * US)
    assert len(queue._levels[0].waiting) < 100


def test_what_waits_for_others_stays_in_its_order(queue_of: QueueMaker) -> None:
    queue = queue_of("priority_levels: 2 default_priority_level: 1 max_queue_delay_microseconds: 100")
    for name, priority in [("c", 2), ("a", 1), ("b", 1)]:
        queue.put(request(name, priority=priority), 0)
    for _ in range(2):
        assert queue.next(0) == Step((), [], 100 * US)
        assert len(queue) == 3
    assert ids(queue.next(100 * US)) == "abc"


def test_a_delayed_request_stays_behind_those_that_come_later(queue_of: QueueMaker) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 10 timeout_action: DELAY }"
    queue = queue_of(f"max_queue_delay_microseconds: 1000 {policy}")
    for name, now in [("b", 0), ("c", 11 * US), ("a", 999 * US)]:
        queue.put(request(name), now)
        assert queue.next(now).wake_ns == 1000 * US
    assert ids(queue.next(1000 * US)) == "abc"


def test_deadlines_of_requests_that_left_are_forgotten(queue_of: QueueMaker) -> None:
    queue = queue_of("default_queue_policy { default_timeout_microseconds: 1000 }")
    for number in range(1000):
        queue.put(request(), number)
        assert queue.next(number).batch
    assert len(queue._deadlines) < 100
    assert queue.deadline_ns is None


def test_draining_takes_everything_out(queue_of: QueueMaker) -> None:
    queue = queue_of("max_queue_delay_microseconds: 100")
    for name in "ab":
        queue.put(request(name), 0)
    assert [item.asked.id for item in queue.drain()] == ["a", "b"]
    assert len(queue) == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(1, 6), st.integers(1, 2), st.integers(0, 3), st.sampled_from([0, 0, 40, 90])
        ),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.integers(1, 120)),
        st.tuples(st.just("next")),
    ),
    max_size=60,
)
POLICIES = [
    "",
    "max_queue_delay_microseconds: 50",
    "max_queue_delay_microseconds: 50 preferred_batch_size: [2, 5]",
    "preferred_batch_size: 3",
    "default_queue_policy { default_timeout_microseconds: 100 allow_timeout_override: true max_queue_size: 9 }",
    """max_queue_delay_microseconds: 80 priority_levels: 2 default_priority_level: 2
    default_queue_policy { default_timeout_microseconds: 60 timeout_action: DELAY }
    priority_queue_policy { key: 1 value { default_timeout_microseconds: 30 } }""",
]


class Model:
    """What must be true of the queue, whatever happens to it."""

    def __init__(self, settings: BatchSettings, queue: BatchQueue) -> None:
        self.settings = settings
        self.queue = queue
        self.now = 0
        self.requests: list[InferRequest] = []
        self.waiting: dict[int, int] = {}
        self.served: list[InferRequest] = []

    def put(self, rows: int, width: int, priority: int, timeout_us: int) -> None:
        item = request(str(len(self.requests)), rows, width, priority=priority, timeout_us=timeout_us)
        if self.queue.put(item, self.now):
            self.requests.append(item)
            self.waiting[id(item)] = self.now

    def cancel(self, index: int) -> None:
        if index < len(self.requests):
            self.requests[index].cancel()

    def wait(self, microseconds: int) -> None:
        self.now += microseconds * US

    def next(self) -> None:
        step = self.queue.next(self.now)
        for refusal in step.refusals:
            del self.waiting[id(refusal.request)]  # A KeyError: it left twice.
        if step.batch:
            self.check_batch(step)
        elif self.waiting:
            assert step.wake_ns is not None
            assert (
                self.now < step.wake_ns <= min(self.waiting.values()) + self.settings.delay_ns or self.settings.levels
            )
        assert len(self.queue) == len(self.waiting)

    def check_batch(self, step: Step) -> None:
        sizes = [item.inputs["x"].array.shape for item in step.batch]
        assert len({shape[1:] for shape in sizes}) == 1
        assert sum(shape[0] for shape in sizes) <= self.settings.max_batch_size
        for item in step.batch:
            del self.waiting[id(item)]
            assert not item.cancelled
            self.served.append(item)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(operations=OPERATIONS)
def test_whatever_happens_each_request_leaves_once_and_batches_keep_the_rules(
    policy: str, operations: list[tuple[Any, ...]]
) -> None:
    text = f"""max_batch_size: 6 dynamic_batching {{ {policy} }} input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}"""
    config = normalize(read_text(text))
    batching = BatchSettings.of(config)
    model = Model(batching, BatchQueue(batching, BatchRule(config)))
    for name, *arguments in operations:
        getattr(model, name)(*arguments)
    while model.waiting:
        model.wait(100)
        model.next()
    assert len(model.queue) == 0
    if not batching.levels:
        assert [int(item.asked.id) for item in model.served] == sorted(int(item.asked.id) for item in model.served)


ConfigMaker = Callable[..., ModelConfig]


def of_inputs(**inputs: Array) -> InferRequest:
    return InferRequest(Asked("m", {name: Tensor.of(array) for name, array in inputs.items()}))


def rule(text: str) -> BatchRule:
    return BatchRule(read_text(f"max_batch_size: 8 {text}"))


def test_fixed_shapes_need_no_comparison() -> None:
    fixed = rule('input { name: "x" dims: [ 2 ] }')
    assert fixed.key(of_inputs(x=np.zeros((1, 2)))) is None


def test_variable_shapes_must_agree_but_for_the_batch() -> None:
    variable = rule('input { name: "x" dims: [ -1 ] } input { name: "z" dims: [ 2 ] }')
    keys = [
        variable.key(of_inputs(x=np.zeros((rows, width)), z=np.zeros((rows, 2))))
        for rows, width in [(1, 2), (3, 2), (1, 3)]
    ]
    assert keys[0] == keys[1] != keys[2]


def test_optional_inputs_must_be_there_in_all_or_none() -> None:
    optional = rule('input { name: "x" dims: [ 2 ] } input { name: "z" dims: [ 2 ] optional: true }')
    array = np.zeros((1, 2))
    assert optional.key(of_inputs(x=array, z=array)) == optional.key(of_inputs(z=array, x=array))
    assert optional.key(of_inputs(x=array)) != optional.key(of_inputs(x=array, z=array))


def test_shape_values_must_be_the_same() -> None:
    shapes = rule('input { name: "x" dims: [ 2 ] } input { name: "s" dims: [ 2 ] is_shape_tensor: true }')
    array = np.zeros((3, 2))
    keys = [shapes.key(of_inputs(x=array, s=np.array(value))) for value in ([1, 2], [1, 2], [2, 1])]
    assert keys[0] == keys[1] != keys[2]
    assert shapes.size(of_inputs(s=np.array([1, 2]), x=array)) == 3


def test_the_size_of_a_request_is_at_least_one() -> None:
    batching = rule('input { name: "x" dims: [ 2 ] }')
    assert batching.size(of_inputs(x=np.zeros((0, 2)))) == 1
    assert BatchRule(read_text('input { name: "x" dims: [ 5 ] }')).size(of_inputs(x=np.zeros(5))) == 1
