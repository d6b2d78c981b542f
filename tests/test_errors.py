import pytest

from repoagent.errors import ErrorCode, error_of


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_an_error_and_a_text(code: ErrorCode) -> None:
    error = error_of(code, "why")
    assert (error.code, error.message) == (code, "why")


def test_texts_are_tritons() -> None:
    assert [code.text for code in ErrorCode] == [
        "Unknown",
        "Internal",
        "Not found",
        "Invalid argument",
        "Unavailable",
        "Unsupported",
        "Already exists",
        "Cancelled",
    ]
