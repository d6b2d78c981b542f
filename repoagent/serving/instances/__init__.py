"""The copies of a version that execute, and how a batch is joined for one."""
