"""Models in processes of their own: one process per instance, whose crash ends nothing else.

    server                                                              process
    instance     decides who receives: a thread, or an event loop       child         executes, one after the other
    exchange     one message of work and its answers                    remote        the server, as the model sees it
    supervisor   starts the process, and starts another one             stub          the program
    child_process, services, open_requests
                      both: channel, server_channel, codec, memory

Two sockets lead to a process. On ``work`` the server sends, and the process answers on the same socket; there is one
exchange at a time. All else goes over ``side``, in either direction, at any time. ``channel`` carries kinds, bodies and
shared memory, and knows nothing of models::

    thread or loop                            process
       |  work: EXECUTE level, requests          |    begin: the exchange belongs to this thread or loop
       |---------------------------------------->|
       |                side: LOG, METRIC, CALL  |
       |  (supervising thread) <-----------------|    counted: an answer waits until those before it are handled
       |  work: DONE count, answers, times, more |
       |<----------------------------------------|    take: requests get their answers
       |  side: RETURN number                    |    after 10 ms of silence, if several executions were sent
       |---------------------------------------->|
       |               side: RETURNED numbers    |    these were not begun, and are executed elsewhere
       |  (supervising thread) <-----------------|
       |  work: DONE count, answers, times, last |
       |<----------------------------------------|    take: last; end: others may begin an exchange

A thread calls ``complete``: it waits for each answer. An event loop calls ``begin``, ``take`` and ``end`` itself when
the socket is readable. If a step would wait, or something is wrong, it has a thread call ``complete`` for the rest.
"""
