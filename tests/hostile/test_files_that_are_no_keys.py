"""T24: who names a file of the machine as a key does not learn whether it is there, or what is in it."""

from pathlib import Path

import pytest

from repoagent.errors import RepoAgentError
from tests.hostile.conftest import NewCore

AGENTS = {
    "decrypt, identity": 'name: "decrypt" parameters { key: "identity" value: "%s" }',
    "decrypt, keyset": 'name: "decrypt" parameters { key: "keyset" value: "%s" }',
    "decrypt, JWE": 'name: "decrypt" parameters { key: "jwe_key" value: "%s" }',
    "verify": 'name: "verify" parameters { key: "public_key" value: "%s" }',
    "verify, certificate": 'name: "verify" parameters { key: "certificate" value: "%s" }',
    "license": 'name: "license" parameters { key: "license" value: "l" } parameters { key: "public_key" value: "%s" }',
    "license, token": 'name: "license" parameters { key: "url" value: "https://licenses.invalid" }'
    ' parameters { key: "token" value: "%s" }',
}
"""Each agent that takes a key, with a parameter for a reference to it."""
CONTENTS = (
    None,
    b"\xff no key",
    b"-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n\xff",
    b"-----BEGIN PRIVATE KEY-----\nQQ==\n-----END PRIVATE KEY-----\n",
    b"# a plug-in's\nAGE-PLUGIN-NONE-1QQ",
    b"{}\xff",
)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("spelling", ["file:", "file://"])
def test_a_file_that_is_no_key_is_refused_like_one_that_is_not_there(
    repository: Path, new_core: NewCore, tmp_path: Path, agent: str, spelling: str
) -> None:
    model = repository / "m"
    (model / "1").mkdir(parents=True)
    path = tmp_path / "secret"
    entry = AGENTS[agent] % f"{spelling}{path}"
    (model / "config.pbtxt").write_text(f'backend: "identity" model_repository_agents {{ agents [{{ {entry} }}] }}')
    core = new_core()
    texts = set()
    for content in CONTENTS:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(RepoAgentError) as raised:
            core.load("m")
        texts.add(str(raised.value))
    assert len(texts) == 1
    assert f"there is no usable file for the key reference file:{path}; the log has the reason" in texts.pop()
