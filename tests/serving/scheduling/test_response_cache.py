import threading
from typing import Any

import numpy as np
import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Array, DataType, Tensor
from repoagent.serving.scheduling.response_cache import Owner, ResponseCache, open_response_cache, request_digest


def request(values: Any, dtype: Any = np.float32, **fields: Any) -> InferRequest:
    return InferRequest(Asked("m", {"x": Tensor.of(np.array(values, dtype))}, **fields))


def text(*elements: bytes) -> InferRequest:
    array = np.empty(len(elements), object)
    array[:] = elements
    return InferRequest(Asked("m", {"x": Tensor(DataType.BYTES, array)}))


def answer(count: int = 100) -> InferResponse:
    return InferResponse("m", "1", "a", {"y": Tensor.of(np.arange(count, dtype=np.uint8))}, {"p": 1})


KEY = (Owner(1), b"k")


def key(number: int) -> tuple[Owner, bytes]:
    return Owner(1), bytes([number])


SAME = [
    (request([1, 2]), request([1, 2], id="other", priority=3, timeout_us=9)),
    (request([1, 2], requested_outputs=("a", "b")), request([1, 2], requested_outputs=("b", "a"))),
    (request([[1, 2], [3, 4]]), InferRequest(Asked("m", {"x": Tensor.of(np.array([[1, 3], [2, 4]], np.float32).T)}))),
    (text(b"a", b"bc"), text(b"a", b"bc")),
]
DIFFERENT = [
    (request([1, 2]), request([1, 3])),
    (request([1, 2]), request([[1, 2]])),
    (request([1], np.int32), request([1], np.uint32)),
    (request([1]), InferRequest(Asked("m", {"z": request([1]).inputs["x"]}))),
    (request([1]), request([1], requested_outputs=("y",))),
    (request([1]), request([1], parameters={"p": 1})),
    (request([1], parameters={"p": 1}), request([1], parameters={"p": "1"})),
    (text(b"a", b"bc"), text(b"ab", b"c")),
    (text(b""), text()),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_requests_that_ask_the_same_have_one_digest(one: InferRequest, other: InferRequest) -> None:
    assert request_digest(one) == request_digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_requests_that_may_have_different_answers_have_different_digests(
    one: InferRequest, other: InferRequest
) -> None:
    assert request_digest(one) != request_digest(other)


def test_an_answer_comes_back_for_the_request_that_asks() -> None:
    cache = ResponseCache(10_000)
    cache.put(KEY, answer())
    found = cache.get(KEY, request([1], id="r"), "7")
    assert found is not None
    assert (found.model_version, found.id, found.parameters) == ("7", "r", {"p": 1})
    assert found.outputs["y"].array.tolist() == list(range(100))
    assert cache.get((Owner(2), b"k"), request([1]), "7") is None


def test_nobody_shares_memory_with_the_cache() -> None:
    cache = ResponseCache(10_000)
    original = answer()
    cache.put(KEY, original)
    arrays: list[Array] = [original.outputs["y"].array]
    for _ in range(2):
        arrays[-1][:] = 0
        found = cache.get(KEY, request([1]), "1")
        assert found is not None
        arrays.append(found.outputs["y"].array)
        assert arrays[-1].tolist() == list(range(100))


def test_the_answer_not_used_for_longest_goes_first() -> None:
    cache = ResponseCache(3 * 612)
    for number in (1, 2, 3):
        cache.put(key(number), answer())
    assert (len(cache), cache.used) == (3, 3 * 612)
    cache.get(key(1), request([1]), "1")
    cache.put(key(4), answer())
    assert [cache.get(key(number), request([1]), "1") is not None for number in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]


def test_an_answer_larger_than_the_cache_is_not_kept() -> None:
    cache = ResponseCache(1000)
    cache.put(key(1), answer())
    cache.put(key(2), answer(2000))
    assert len(cache) == 1


def test_the_same_answer_twice_is_kept_once() -> None:
    cache = ResponseCache(1000)
    cache.put(KEY, answer())
    cache.put(KEY, answer())
    assert (len(cache), cache.used) == (1, 612)


def test_text_counts_with_its_length() -> None:
    cache = ResponseCache(10_000)
    cache.put(KEY, InferResponse("m", "1", outputs={"y": Tensor(DataType.BYTES, np.array([b"x" * 5000], object))}))
    assert cache.used == 512 + 8 + 5000


def test_a_version_that_goes_takes_its_answers_along() -> None:
    cache = ResponseCache(10_000)
    owners = [cache.new_owner(), cache.new_owner()]
    for owner in owners:
        cache.put((owner, b"k"), answer())
    cache.forget(owners[0])
    assert (len(cache), cache.used) == (1, 612)
    assert cache.get((owners[1], b"k"), request([1]), "1") is not None


def test_the_bound_holds_under_many_threads() -> None:
    cache = ResponseCache(5 * 612)

    def work(seed: int) -> None:
        for number in range(200):
            cache.put(key((seed * number) % 20), answer())
            cache.get(key(number % 20), request([1]), "1")
            assert cache.used <= cache.capacity

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.used == len(cache) * 612


def test_the_server_option_says_how_large_it_is() -> None:
    assert open_response_cache({}) is None
    for size in (4096, "4096"):
        cache = open_response_cache({"local": {"size": size}})
        assert cache is not None
        assert cache.capacity == 4096


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"redis": {"host": "h"}}, "unable to find cache 'redis'; available is 'local'"),
        ({"local": {}}, "must have a positive 'size' in bytes, not None"),
        ({"local": {"size": "many"}}, "not 'many'"),
        ({"local": {"size": 0}}, "not 0"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        open_response_cache(settings)
