"""What the plug-in module registers can be imported; the module itself imports nothing heavy."""

import subprocess
import sys
from importlib import import_module

import click
import pytest
from repoagent_decrypt import register_commands, register_key_providers


@pytest.mark.parametrize("target", register_key_providers().values())
def test_every_key_provider_is_there(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", list(register_commands()))
def test_every_command_is_there_under_its_name(name: str) -> None:
    module, _, attribute = register_commands()[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name


@pytest.mark.slow
def test_importing_the_plug_in_loads_no_cryptography_and_no_click() -> None:
    code = "import sys, repoagent_decrypt; print({'cryptography', 'click', 'botocore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
