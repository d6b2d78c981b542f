"""The contract accepts a well-behaved agent and catches each of those that break one promise."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.slow

NAUGHTY = Path(__file__).parent / "data" / "naughty_agents.py"
MUST_FAIL = {
    "TestWritesIntoTheModel": "test_the_models_own_directory_stays_as_it_was",
    "TestLeavesATemporaryFile": "test_nothing_is_left_in_temporary_home_and_working_directory",
    "TestLeavesAFileInTheWorkingDirectory": "test_nothing_is_left_in_temporary_home_and_working_directory",
    "TestAcceptsTheBadModel": "test_a_bad_model_is_refused_with_a_reason",
    "TestRefusesEveryModel": "test_a_good_model_is_loaded_and_unloaded",
    "TestRefusesWithoutAReason": "test_a_bad_model_is_refused_with_a_reason",
    "TestGuardsNothing": "test_a_bad_model_is_refused_with_a_reason",
    "TestFailsOpen": "test_an_error_at_any_call_leaves_nothing_and_the_next_load_is_fine",
    "TestLogsTheKey": "test_no_secret_is_logged_reported_or_raised",
    "TestReportsTheKey": "test_no_secret_is_logged_reported_or_raised",
    "TestRefusesWithTheKey": "test_no_secret_is_logged_reported_or_raised",
    "TestWritesTheKeyToADisk": "test_no_secret_and_no_plaintext_reaches_a_disk",
    "TestWritesPlaintextToADisk": "test_no_secret_and_no_plaintext_reaches_a_disk",
    "TestCannotUnloadTwice": "test_unload_does_no_harm_the_second_time",
    "TestRaisesWhenTheLoadFails": "test_a_refusal_by_a_later_agent_leaves_nothing",
    "TestKnowsOneModelOnly": "test_two_models_are_loaded_at_once_with_one_object",
    "TestCannotBeCancelled": "test_long_work_is_given_up_when_the_load_is_cancelled",
    "TestIsBrokenByOneError": "test_an_error_at_any_call_leaves_nothing_and_the_next_load_is_fine",
    "TestStatesNoVersion": "test_it_states_an_api_version_that_this_program_supports",
    "TestHasNoDocstring": "test_it_has_a_docstring",
    "TestReadmeMissesAParameter": "test_the_readme_names_every_parameter",
    "TestIsNotOfferedUnderItsName": "test_it_is_offered_under_its_name",
}
"""Test class of naughty_agents.py -> the promise that it breaks."""

Failures = dict[str, set[str]]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """Run them, once; test class -> the tests that failed."""
    report = tmp_path_factory.mktemp("naughty") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--junitxml={report}"]
    tests = [f"{NAUGHTY}::{name}::{test}" for name, test in MUST_FAIL.items()]
    command = [sys.executable, "-m", "pytest", *options, f"{NAUGHTY}::TestWellBehaved", *tests]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    found: Failures = defaultdict(set)
    for case in ET.parse(report).iter("testcase"):
        failed = found[case.attrib["classname"].rpartition(".")[2]]
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(case.attrib["name"])
    return found


def test_a_well_behaved_agent_passes(failures: Failures) -> None:
    assert failures["TestWellBehaved"] == set()


@pytest.mark.parametrize("name", MUST_FAIL)
def test_a_broken_promise_is_noticed(failures: Failures, name: str) -> None:
    assert MUST_FAIL[name] in failures[name]


def test_a_refusal_of_the_good_model_is_one_failure_with_its_reason() -> None:
    """U7: ten tests passed, as nothing was loaded."""
    tests = f"{NAUGHTY}::TestRefusesEveryModel"
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-rsf", tests]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True)
    assert "the good model was refused: agent 'subject': nothing is good enough" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed, 2 passed, 18 skipped")


def test_every_naughty_agent_is_listed_here() -> None:
    classes = re.findall(r"^class (Test\w+)", NAUGHTY.read_text(), re.MULTILINE)
    assert set(classes) - {"TestWellBehaved"} == set(MUST_FAIL)
