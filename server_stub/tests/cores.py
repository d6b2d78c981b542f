"""Cores for tests of front ends."""

from pathlib import Path

from repoagent.serving.core import ControlMode, CoreOptions


def every_model(folder: Path) -> CoreOptions:
    """Serve every model of ``folder/models``, which clients may load and unload."""
    return CoreOptions(
        repositories=(str(folder / "models"),),
        control_mode=ControlMode.EXPLICIT,
        startup_models=("*",),
        workspace_directory=folder / "work",
        cache_directory=folder / "cache",
    )
