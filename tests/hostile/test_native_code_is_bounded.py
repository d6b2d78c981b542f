"""T17: whatever runs native code on what others wrote has a bound, and a test that shows it; this walks all of it."""

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT: Final = (
    "repoagent", "llm/repoagent_llm", "server_stub/repoagent_server", "capi/repoagent_capi", "agents", "deploy/ray"
)  # fmt: skip
NATIVE_STDLIB: Final = frozenset({"bz2", "ctypes", "gzip", "lzma", "mmap", "sqlite3", "ssl", "xml", "zipfile", "zlib"})
PURE: Final = frozenset({"click", "fsspec", "hpack", "jwt", "packaging", "pluggy", "pytest"})
"""Python without native code; what it is given is bounded where it is given."""
OWN: Final = ("repoagent", "agents", "tests", "examples")


class Bound(NamedTuple):
    """What bounds the native code of a library: a sentence, and a test that fails without it."""

    what: str
    test: str


BOUNDS: Final = {
    "onnxruntime": Bound(
        "opening: the graph is judged, or tried in a process; runs: RunOptions.terminate",
        "tests/hostile/test_files_that_take_long_to_open.py"
        "::test_what_takes_more_than_the_limit_is_refused_by_a_process_that_ends",
    ),
    "onnx": Bound(
        "graphs of decoders have a limit of bytes; converters run in a process with a limit of time",
        "llm/tests/hostile/test_files_that_take_long_to_read.py"
        "::test_a_file_above_its_limit_is_refused_by_name_and_others_are_served",
    ),
    "tensorrt": Bound(
        "plans are checked before they are read, and built in the process of a converter",
        "tests/hostile/test_plans_of_strangers.py::test_a_batch_that_no_memory_holds_is_refused_at_load",
    ),
    "cuda": Bound(
        "probed in a process; afterwards only buffers, whose sizes plans and batches bound",
        "tests/hostile/test_plans_of_strangers.py::test_a_batch_that_no_memory_holds_is_refused_at_load",
    ),
    "llguidance": Bound(
        "a guide is compiled in a process with limits of time and memory first",
        "llm/tests/hostile/test_costly_requests.py"
        "::test_a_guide_without_end_is_ended_and_costs_this_process_nothing",
    ),
    "tokenizers": Bound(
        "tokenizer.json and prompts have limits of bytes",
        "llm/tests/hostile/test_costly_requests.py::test_a_prompt_of_eight_megabytes_is_refused_before_it_is_read",
    ),
    "jinja2": Bound(
        "templates run in a process with limits of time and memory",
        "llm/tests/hostile/test_templates_of_strangers.py::test_a_template_without_end_is_ended",
    ),
    **dict.fromkeys(
        ("xgboost", "lightgbm"),
        Bound(
            "compares in the process of a converter, after the file was read and checked without it",
            "agents/convert/tests/trees/test_hostile_files.py::test_what_a_tree_may_not_have_is_refused_by_name",
        ),
    ),
    **dict.fromkeys(
        ("sklearn", "skl2onnx", "skops", "joblib", "pandas", "catboost"),
        Bound(
            "run in the process of a converter, in a jail with a limit of memory",
            "tests/loader/converting/test_environments.py"
            "::test_a_hostile_pickle_changes_nothing_outside_and_does_without_the_jail",
        ),
    ),
    **dict.fromkeys(
        ("torch", "onnxscript"),
        Bound(
            "run in the process of a converter, in a jail with a limit of memory",
            "agents/convert/tests/networks/test_hostile_pt2.py"
            "::test_a_pickle_in_a_program_changes_nothing_outside_and_does_without_the_jail",
        ),
    ),
    **dict.fromkeys(
        ("tensorflow", "keras", "tf2onnx"),
        Bound(
            "run in the process of a converter, in a jail with a limit of memory",
            "agents/convert/tests/networks/test_tensorflow.py::test_a_hostile_model_is_refused_and_changes_nothing",
        ),
    ),
    "zipfile": Bound(
        "unpacks archives of 64 MiB and 10,000 members at most",
        "agents/scan/tests/test_detection.py::test_an_archive_that_unpacks_to_much_is_not_unpacked",
    ),
    "openvino": Bound(
        "its graph is written by the project; steps of requests end with them",
        "llm/tests/runner/openvino/test_model.py::test_a_step_is_ended_while_it_runs",
    ),
    "numpy": Bound(
        "arrays are made of declared shapes, which are held against limits or the bytes that came; never np.load",
        "tests/hostile/test_loads_that_take_too_much.py::test_a_configuration_asks_for_more_than_a_machine_has",
    ),
    "orjson": Bound(
        "nesting is counted before it reads, and bodies have limits of bytes",
        "tests/hostile/test_texts_nested_without_end.py::test_every_reader_refuses_it_with_an_error_of_its_own",
    ),
    "simdjson": Bound(
        "nesting is counted before it reads, and bodies have limits of bytes",
        "tests/hostile/test_texts_nested_without_end.py::test_every_reader_refuses_it_with_an_error_of_its_own",
    ),
    "google": Bound(
        "protobuf: messages and configurations have limits of bytes, which it reads in proportion to",
        "tests/hostile/test_loads_that_take_too_much.py::test_a_configuration_is_not_read_whole",
    ),
    "httptools": Bound(
        "heads and chunks of requests have limits of bytes",
        "tests/hostile/front_ends/test_chunked_bodies_without_end.py::test_what_is_around_a_body_has_an_end",
    ),
    "uvloop": Bound(
        "it moves bytes between sockets and the program, which drops clients that stall",
        "tests/hostile/front_ends/test_clients_that_stall.py::test_the_server_ends_connections_that_stall",
    ),
    "ssl": Bound(
        "handshakes have a limit of time and of number",
        "tests/hostile/front_ends/test_tls_handshakes.py::test_a_handshake_that_takes_too_long_ends",
    ),
    "cryptography": Bound(
        "scrypt has a limit of memory; keys, certificates and key sets have limits of bytes",
        "tests/hostile/test_loads_that_take_too_much.py"
        "::test_a_passphrase_that_takes_more_memory_than_the_operator_allows",
    ),
    "zlib": Bound(
        "decompressed in pieces into one reserve; archives have limits of bytes",
        "tests/hostile/front_ends/test_memory_held_for_strangers.py"
        "::test_bodies_that_open_to_more_than_there_is_room_for",
    ),
    "gzip": Bound(
        "archives are read as streams, with limits of bytes and of their heads",
        "tests/hostile/fetch/test_layers_that_multiply.py::test_a_name_of_gzip_without_end_is_refused",
    ),
    "lzma": Bound(
        "decompressed in pieces, within a limit of memory, and a load may be cancelled between them",
        "tests/hostile/test_scans.py::test_a_cancelled_scan_ends_within_the_file",
    ),
    "blake3": Bound(
        "files are read in pieces, between which a load may be cancelled",
        "tests/hostile/test_scans.py::test_a_cancelled_scan_ends_within_the_file",
    ),
    "modelaudit": Bound(
        "runs in a process with limits of time, memory and files",
        "agents/scan/tests/test_modelaudit.py::test_a_scan_that_takes_too_long_is_killed",
    ),
    "mmap": Bound(
        "mappings are as large as files and regions that were looked at",
        "tests/hostile/test_processes_that_take_without_end.py"
        "::test_memory_beyond_the_limits_is_not_mapped",
    ),
}  # fmt: skip
TRUSTED: Final = {
    "ctypes": "system calls, and agents that the operator installed: they read nothing that others wrote by it",
    "pyrage": "encrypted files are read as streams, by keys that the operator allows",
    **dict.fromkeys(("aiohttp", "azure", "botocore"), "clients of stores and services that the operator names"),
    **dict.fromkeys(("sigstore", "sigstore_models"), "bundles of signatures, which have a limit of bytes"),
    "securesystemslib": "signs receipts with a key that the operator names",
    "opentelemetry": "writes what the server itself measured",
    **dict.fromkeys(("grpc", "grpc_health", "grpc_reflection"), "the other transport, which the operator asks for"),
    **dict.fromkeys(("pydantic", "ray"), "the program around the server"),
}
"""Without a bound of ours, and why there need be none."""


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages that a file imports, also while it runs, and by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


@lru_cache
def native() -> dict[str, set[str]]:
    """Each package that may run native code, and the files of the product that import it."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT)
        if {"tests", "testing", "build"} & set(where.parts):
            continue
        for name in {one.partition(".")[0] for one in imported(ast.parse(path.read_text("utf-8")))}:
            ours = name.startswith((*OWN, "_")) or name in PURE
            if not ours and (name not in sys.stdlib_module_names or name in NATIVE_STDLIB):
                found.setdefault(name, set()).add(str(where))
    return found


def test_all_native_code_of_the_product_has_a_bound() -> None:
    missing = {name: sorted(places) for name, places in native().items() if name not in BOUNDS | TRUSTED}
    assert not missing, "bound what they do, show it in a test, and name both in BOUNDS; or say in TRUSTED why not"


def test_no_bound_is_named_for_what_is_gone() -> None:
    assert not (BOUNDS | TRUSTED).keys() - native().keys()


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_the_test_of_a_bound_exists(name: str) -> None:
    path, _, test = BOUNDS[name].test.partition("::")
    functions = {
        node.name for node in ast.parse((ROOT / path).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    assert test in functions


def test_arrays_of_others_are_read_without_pickles() -> None:
    """``numpy.load`` takes no more memory than the file has, unless it may unpickle."""
    calls = [
        ast.unparse(call)
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if "tests" not in path.parts and ".load(" in (text := path.read_text("utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("np.load", "numpy.load")
    ]
    assert calls
    assert all("allow_pickle=False" in call for call in calls)
