"""Budgets by themselves."""

from repoagent_server.grpc.http2.control import Bucket, PingGuard


def test_tokens_come_back_with_time_and_with_answers() -> None:
    bucket = Bucket(10, 2.0, 3)
    assert all(bucket.take(100.0, 0) for _ in range(10))
    assert not bucket.take(100.0, 0)
    assert bucket.take(101.5, 0, 2)
    assert not bucket.take(101.5, 0)
    assert bucket.take(101.5, 1)
    assert all(bucket.take(1000.0, 1) for _ in range(10))
    assert not bucket.take(1000.0, 1)


def test_pings_without_an_answer_between_must_leave_time() -> None:
    guard = PingGuard(300.0, 2, False)
    assert guard.came(0.0, 0, True)
    assert guard.came(301.0, 0, True)
    assert guard.came(302.0, 0, True)
    assert guard.came(303.0, 0, True)
    assert not guard.came(304.0, 0, True)
    assert guard.came(305.0, 1, True)


def test_without_calls_two_hours_are_to_lie_between_pings_unless_they_are_permitted() -> None:
    strict, lax = PingGuard(300.0, 1, False), PingGuard(300.0, 1, True)
    for guard in (strict, lax):
        assert guard.came(0.0, 0, False)
        assert guard.came(400.0, 0, False)
    assert not strict.came(800.0, 0, False)
    assert lax.came(800.0, 0, False)


def test_no_strikes_are_no_limit() -> None:
    guard = PingGuard(300.0, 0, False)
    assert all(guard.came(0.0, 0, True) for _ in range(100))
