"""Makes version 1 of the model that ``repository/sums`` configures, of the checkpoint beside this file.

A model of your own is served alike: put its decoder folder, with its tokenizer.json, into a version directory.
``build`` makes one of a checkpoint in safetensors.
"""

import sys
from pathlib import Path

from repoagent_llm.builder import build

HERE = Path(__file__).parent


def main(repository: Path) -> None:
    """Write the version's directory."""
    version = build(HERE / "checkpoint", repository / "sums" / "1")
    print(f"wrote {version}: {', '.join(sorted(path.name for path in version.iterdir()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "repository")
