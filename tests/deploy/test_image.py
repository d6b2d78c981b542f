"""The image, built without a registry and run as a cluster runs it: ``deploy/image/prove.py``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LACKING = 77


@pytest.mark.skipif(
    os.environ.get("REPOAGENT_TESTS_BUILD_IMAGE") != "1",
    reason="takes ten minutes and downloads Debian's packages: REPOAGENT_TESTS_BUILD_IMAGE=1",
)
def test_the_image_serves_the_encrypted_digits_read_only_as_uid_1000(deploy: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(deploy / "image" / "prove.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == LACKING:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    print(done.stdout)
    for promise in ("size: ", "the root is read-only, and there is no shell", "as uid 1000", "SageMaker's /ping"):
        assert promise in done.stdout
