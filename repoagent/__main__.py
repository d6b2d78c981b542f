"""``python -m repoagent`` is the ``repoagent`` program."""

from repoagent.cli.main import main

main()
