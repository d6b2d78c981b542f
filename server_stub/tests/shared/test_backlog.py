from repoagent_server.shared.backlog import Backlog

MIB = 1 << 20


def test_one_stream_may_run_ahead_by_a_burst() -> None:
    backlog = Backlog()
    backlog.change(0, 32 * MIB)
    assert backlog.allows(32 * MIB)
    assert not backlog.allows(32 * MIB + 1)


def test_when_all_together_are_far_ahead_only_those_that_are_little_ahead_go_on() -> None:
    backlog = Backlog()
    for _ in range(5):
        backlog.change(0, 30 * MIB)
    assert backlog.allows(MIB // 4)
    assert not backlog.allows(MIB)
    backlog.change(30 * MIB, 0)
    assert backlog.total == 120 * MIB
    assert backlog.allows(MIB)
