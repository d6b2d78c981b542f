"""A model repository agent that decrypts age files into memory or tmpfs, with keys given by reference.

:mod:`~repoagent_decrypt.agent` is the agent, :mod:`~repoagent_decrypt.age` the file format (it knows nothing of
agents), :mod:`~repoagent_decrypt.providers` where keys come from, :mod:`~repoagent_decrypt.cli` the commands.
"""
