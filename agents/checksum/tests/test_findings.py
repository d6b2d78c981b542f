"""The one message that says what is wrong."""

from repoagent_checksum.findings import Finding, Kind, describe


def test_each_kind_names_its_first_few() -> None:
    findings = [
        *(Finding(Kind.UNLISTED, f"extra{i}") for i in range(5)),
        Finding(Kind.CHANGED, "1/model.onnx", "SHA256 expect: aa, got: bb"),
        Finding(Kind.MISSING, "line\nend"),
    ]
    assert describe(findings) == (
        "changed: 1/model.onnx (SHA256 expect: aa, got: bb); missing: line\\nend; "
        "not listed: extra0, extra1, extra2, and 2 more"
    )


def test_a_single_mismatch_is_tritons_text_alone() -> None:
    text = "Mismatched MD5 hash for file 1/model.py, expect: 00, got: 11"
    assert describe([Finding(Kind.MISMATCH, "1/model.py", text)]) == text
