"""``python -m repoagent_server.program.worker_start DESCRIPTOR``: a worker that cannot look into the keeper."""

from repoagent.beneath import jail


def main() -> None:
    """Leave what this process has no need for, then serve.

    First, as long as there is one thread: libraries start others when they are imported.
    """
    jail.enter_apart()
    from repoagent_server.program.worker import main as serve

    serve()


if __name__ == "__main__":
    main()
