"""The command line: ``repoagent ...``. Each command imports what it needs when it runs, so ``--help`` stays quick."""
