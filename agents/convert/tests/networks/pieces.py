"""Converters of ``.pt2`` whose jail lacks pieces. They are imported in the process that builds: nothing heavy here."""

from repoagent_convert.networks.pt2 import Pt2Converter

from repoagent.beneath import jail


class NoFiles(Pt2Converter):
    """Without Landlock; ``group`` of system calls is allowed, too."""

    group = ""

    def prepare(self) -> None:
        """Leave out the pieces, in the process that is about to be jailed."""
        super().prepare()
        real, group = jail.enter_calls, self.group
        setattr(jail, "enter_files", lambda *_: None)  # noqa: B010
        setattr(jail, "enter_calls", lambda groups: real({*groups} - {group}))  # noqa: B010


class NoNetwork(NoFiles):
    group = "network"


class NoPrograms(NoFiles):
    group = "programs"


class NoAttributes(NoFiles):
    group = "attributes"


class NoProcesses(NoFiles):
    group = "processes"
