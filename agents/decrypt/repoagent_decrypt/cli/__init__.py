"""``repoagent encrypt``, ``decrypt``, ``rekey`` and ``keygen``: the side of those who make and own models.

Exit status: 0 done; 1 not done (damaged files, a wrong key, no room, OUT exists); 2 the command line is wrong.
"""
