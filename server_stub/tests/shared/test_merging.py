"""What several servers report of one model, as one answer."""

import pytest
from repoagent_server.shared.merging import merged_index, merged_metrics, merged_statistics


def _entry(name: str, state: str = "", version: str = "", reason: str = "") -> dict[str, str]:
    fields = {"name": name, "version": version, "state": state, "reason": reason}
    return {key: value for key, value in fields.items() if value}


def test_the_replica_that_is_furthest_with_a_version_counts() -> None:
    one = [_entry("a", "UNAVAILABLE", "1", "unloaded"), _entry("b"), _entry("c", "LOADING", "1")]
    two = [_entry("a", "READY", "1"), _entry("b", "UNAVAILABLE", "", "refused"), _entry("c")]
    assert merged_index([one, two]) == merged_index([two, one])
    assert merged_index([one, two]) == [
        _entry("a", "READY", "1"),
        _entry("b", "UNAVAILABLE", "", "refused"),
        _entry("c", "LOADING", "1"),
    ]


def test_namesakes_in_two_repositories_stay_apart() -> None:
    one = [{"name": "a", "namespace": "x", "version": "1", "state": "READY"}, {"name": "a", "namespace": "y"}]
    assert merged_index([one, one]) == one


def test_counters_are_added_and_times_are_not() -> None:
    def stats(success: int, last: int, size: int) -> dict[str, object]:
        duration = {"count": success, "ns": 10 * success}
        batch = {"batch_size": size, "compute_infer": {"count": 1, "ns": 5}}
        entry = {
            "name": "a",
            "version": "1",
            "last_inference": last,
            "inference_count": success,
            "inference_stats": {"success": duration},
            "response_stats": {str(size): {"success": duration}},
            "batch_stats": [batch],
            "memory_usage": [],
        }
        return {"model_stats": [entry]}

    (both,) = merged_statistics([stats(2, 90, 1), stats(3, 70, 2), stats(4, 80, 2)])["model_stats"]
    assert (both["name"], both["version"], both["last_inference"], both["inference_count"]) == ("a", "1", 90, 9)
    assert both["inference_stats"] == {"success": {"count": 9, "ns": 90}}
    assert both["response_stats"]["2"]["success"] == {"count": 7, "ns": 70}
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in both["batch_stats"]] == [(1, 1), (2, 2)]
    assert merged_statistics([]) == {"model_stats": []}
    (most,) = merged_statistics([stats(1 << 63, 0, 0), stats(1 << 63, 0, 0), stats(1 << 63, 0, 0)])["model_stats"]
    assert most["inference_count"] == (1 << 64) - 1


def test_the_metrics_of_replicas_are_one_page_in_which_each_value_has_its_replica() -> None:
    head = "# HELP a_total Things, {counted}\n# TYPE a_total counter\n"
    one = f'{head}a_total{{model="m # 1"}} 1\n# HELP up Whether\n# TYPE up gauge\nup 1\n'
    other = f'{head}a_total{{model="m # 1"}} 2\n'
    page = merged_metrics([("r1", one), ("r2", other)], "replica")
    assert page == (
        f'{head}a_total{{replica="r1",model="m # 1"}} 1\na_total{{replica="r2",model="m # 1"}} 2\n'
        '# HELP up Whether\n# TYPE up gauge\nup{replica="r1"} 1\n'
    )
    assert merged_metrics([], "replica") == ""


def test_a_label_that_a_model_calls_like_that_of_the_server_is_there_once() -> None:
    page = '# HELP a A\n# TYPE a gauge\na{b="1",replica="x"} 1\na{replica="y"} 2\n'
    assert merged_metrics([("r1", page)], "replica").splitlines()[2:] == [
        'a{replica="r1",b="1",exported_replica="x"} 1',
        'a{replica="r1",exported_replica="y"} 2',
    ]


def test_a_family_is_described_once() -> None:
    pages = [(name, f"# HELP a {name}\n# TYPE a gauge\na 1\n") for name in ("r1", "r2")]
    assert merged_metrics(pages, "replica").count("#") == 2


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_label_in_which_python_sees_the_end_of_a_line_breaks_no_page(separator: str) -> None:
    """Prometheus ends lines at a line feed alone, and the texts of labels are the models' own."""
    page = f'# HELP a_total Things\n# TYPE a_total counter\na_total{{of="here{separator}there"}} 1\n'
    assert merged_metrics([("r1", page)], "replica") == page.replace("{of", '{replica="r1",of')
