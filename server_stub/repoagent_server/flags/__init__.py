"""The flags of `repoagent serve`, and the file that may hold them."""
