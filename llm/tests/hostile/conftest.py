"""The fixtures of the hostile tests of the whole program, and those of the backend."""

from llm.tests.backend.conftest import asker, core, decoder, write_llm
from tests.hostile.conftest import _opens, at_open, decoder_folder, new_core, outside, reasons, repository, workspace

# fmt: off
__all__ = [
    "_opens", "asker", "at_open", "core", "decoder", "decoder_folder", "new_core", "outside", "reasons", "repository",
    "workspace", "write_llm",
]
