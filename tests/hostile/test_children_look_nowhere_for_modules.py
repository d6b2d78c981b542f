"""No child process of the product imports what lies in the directory where the server was started.

``python -m`` looks there first. Operators start servers in a directory of models, and a model may have any name.
"""

import ast

from tests.hostile.test_no_expression_reads_a_text_again_and_again import FOLDERS, ROOT

APART = {"-P", "-I"}
_INTERPRETERS = ("sys.executable", "interpreter", "python", "str(python)")
OF_AUTHORS = "repoagent/testing/killing.py"
"""Kills agents in their authors' tests, which import from the directory that they run in."""


def commands() -> list[tuple[str, list[str]]]:
    """Every list or tuple of arguments that begins with an interpreter, with its place and its constants."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.List | ast.Tuple) and _is_interpreter(node):
                    texts = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                    found.append((str(path.relative_to(ROOT)), [str(text) for text in texts]))
    return found


def _is_interpreter(node: ast.List | ast.Tuple) -> bool:
    """Whether the first of what is read there is one."""
    return isinstance(node.ctx, ast.Load) and ast.unparse(node.elts[0] if node.elts else node) in _INTERPRETERS


def test_every_child_is_started_apart_from_the_working_directory() -> None:
    found = [(place, texts) for place, texts in commands() if place != OF_AUTHORS]
    assert len(found) >= 8, found
    assert [place for place, texts in found if not APART & set(texts)] == []
