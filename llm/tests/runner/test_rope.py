"""What a rotary embedding may be; that the numbers are transformers' is shown in openvino/test_architectures.py."""

from typing import Any

import numpy as np
import pytest
from repoagent_llm.runner.rope import rope_speeds
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

from repoagent.errors import InvalidArgumentError

LONG = {"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 4.0, "short_factor": [1.0, 2.0]}


def test_only_two_kinds_depend_on_the_length() -> None:
    plain = {"rope_theta": 100.0}
    np.testing.assert_allclose(rope_speeds(plain, 4, 10)[0], [1, 0.1])
    np.testing.assert_allclose(rope_speeds({**plain, "rope_type": "linear", "factor": 2.0}, 4, 10)[0], [0.5, 0.05])
    dynamic = {**plain, "type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 10}
    np.testing.assert_allclose(rope_speeds(dynamic, 4, 10)[0], [1, 0.1])
    np.testing.assert_allclose(rope_speeds(dynamic, 4, 20)[0], [1, 1 / 30])  # the base is 100 * 3 ** 2
    yarn = {**plain, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}
    assert rope_speeds(yarn, 4, 10)[1] == pytest.approx(0.1 * np.log(4) + 1)
    assert rope_speeds({**yarn, "attention_factor": 2.0}, 4, 10)[1] == 2
    both = {**plain, **LONG, "long_factor": [2.0, 4.0]}
    np.testing.assert_allclose(rope_speeds(both, 4, 32)[0], [1, 0.05])
    np.testing.assert_allclose(rope_speeds(both, 4, 33)[0], [0.5, 0.025])


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_theta": 0}, "needs rope_theta, a number > 0, not 0"),
        ({"rope_theta": "1"}, "needs rope_theta, a number > 0, not '1'"),
        ({"rope_theta": True}, "needs rope_theta"),
        ({"rope_theta": 1e300}, "needs rope_theta"),
        ({"rope_type": "yarn", "factor": 2.0}, "needs original_max_position_embeddings"),
        (LONG, "needs long_factor, a list of 2 numbers"),
        ({**LONG, "long_factor": [1.0, 2.0, 3.0]}, "needs long_factor, a list of 2 numbers"),
        ({**LONG, "long_factor": [1.0, -2.0]}, "needs long_factor, a list of 2 numbers"),
    ],
)
def test_wrong_numbers_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rope_speeds(rope, 4, 64)


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="rope scaling 'xpos'"):
        rope_speeds({"rope_type": "xpos"}, 4, 64)
