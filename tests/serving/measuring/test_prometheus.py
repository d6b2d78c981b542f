"""Prometheus' text format, read back with Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from repoagent.serving.measuring.prometheus import Family, render


def test_what_is_written_is_what_prometheus_reads() -> None:
    labels = [("model", 'a"b\\c\nd'), ("version", "1")]
    text = render(
        [
            Family("one", "counter", "With a \\ and\na break", [(labels, 3), ([("model", "x")], 0.25)]),
            Family("two", "gauge", "plain", [((), 2.0)]),
            Family("none", "gauge", "left out", []),
        ]
    )
    one, two = text_string_to_metric_families(text)
    assert [(s.name, s.labels, s.value) for s in one.samples] == [
        ("one_total", dict(labels), 3.0),
        ("one_total", {"model": "x"}, 0.25),
    ]
    assert '\none{model="x"} 0.25\n' in text, "the parser adds the suffix, dashboards made for Triton have none"
    assert (one.type, one.documentation) == ("counter", "With a \\ and\na break")
    assert (two.type, two.samples[0].value) == ("gauge", 2.0)
