import pytest
from repoagent_llm.backend.request_limits import DEFAULT_REQUEST_LIMITS

from repoagent.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "guide",
    [
        r'{"type": "array", "minItems": 1000000000}',
        r'{"type": "array", "min\u0049tems": 1000000000}',
        r'{"pattern": "a{1000000000}"}',
        r'{"pattern": "a\u007b1000000000\u007d"}',
        r'{"pattern": "a{\u0031000000000}"}',
    ],
)
def test_repetitions_are_counted_however_json_spells_them(guide: str) -> None:
    with pytest.raises(InvalidArgumentError, match="repetitions are more than"):
        DEFAULT_REQUEST_LIMITS.check_guide(guide)


def test_other_escapes_are_no_repetitions() -> None:
    DEFAULT_REQUEST_LIMITS.check_guide(r'{"enum": ["\u00e9", "\ud83d\ude00", "\\u0041", "\u00"]}')
