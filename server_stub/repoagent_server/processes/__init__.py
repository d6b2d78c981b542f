"""``repoagent serve --processes N``: one process keeps the models, the others serve them.

    keeper                                                         worker, N of them
    the core: repositories, agents, keys, audit, life cycles       front ends, and a core that is given its models
    fleet     starts workers, and has all of them do the same      worker    what the keeper may have it do
    builder   a version that is "built" is built in every worker
    desk      what a worker may ask for                            links     requests for models that one worker has
    worker_process   how one starts and ends                       user      whose it is, and what that user may read
    the programs: ../program/keeper.py                             ../program/worker.py

One socket leads to each worker. Either side calls the other over it (``calls``), with the messages of Python models'
processes. A worker inherits its listening sockets: the keeper makes them, and accepts nothing on them itself.
"""
