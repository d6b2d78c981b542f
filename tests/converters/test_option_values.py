"""Values of options."""

import pytest

from repoagent.converters.option_values import choice, file_name, number, truth
from repoagent.errors import InvalidArgumentError, UnsafePathError


def test_values_are_read() -> None:
    options = {"kind": "FAST", "yes": "True", "no": "0", "count": "7", "file": "a.plan"}
    assert choice(options, "kind", ["fast", "slow"]) == "fast"
    assert (truth(options, "yes"), truth(options, "no")) == (True, False)
    assert (number(options, "count", 0, 7), number(options, "other", 0, 7)) == (7, None)
    assert (file_name(options, "file"), file_name(options, "other")) == ("a.plan", None)


@pytest.mark.parametrize("text", ["8", "-1", "1.5", "", "\u0663", "1" * 5000, "0x1"])
def test_a_number_out_of_range_or_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"parameter 'count': .* is not a whole number from 0 to 7"):
        number({"count": text}, "count", 0, 7)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "/etc/passwd", "a\0", "a\n", "a" * 201])
def test_a_file_name_has_no_directory(text: str) -> None:
    with pytest.raises(UnsafePathError, match="is not a plain file name"):
        file_name({"file": text}, "file")
