"""`repoagent serve`: the program, its options, signals and progress."""
