"""Python models in processes of their own: one per instance, whose crash takes nothing else down.

The server's side is ``instance`` over ``supervisor``, ``child_process``, ``server_channel`` and ``services``; the other
side is ``stub`` (the program), ``child`` and ``remote``. Both share ``memory``, ``packets``, ``channel`` and ``codec``.
The child runs the code of the in-process variant, over requests that came through the channel.
"""
