"""A chat template of the model's owner that never ends, takes all memory, or reaches for Python: the server goes on."""

import gc
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_llm.backend.chat import renderer as renderer_module
from repoagent_llm.backend.chat.renderer import ChatRenderer
from repoagent_llm.backend.chat.source import ChatSource

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.errors import ConfigError, InvalidArgumentError, RepoAgentError
from repoagent.limits import Limits
from repoagent.serving.core import ServingCore
from tests.processes import children

USER = json.dumps([{"role": "user", "content": "hello"}])
DOUBLED = (
    "{% set ns = namespace(x=FIRST) %}{% for i in range(60) %}{% set ns.x = NEXT %}{% endfor %}{{ ns.x | length }}"
)

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a list in itself": DOUBLED.replace("FIRST", "[1]").replace("NEXT", "[ns.x, ns.x]").replace("length", "tojson"),
    "words without end": "{{ lipsum(n=9999999) }}",
    "one call that takes all day": "{{ (['x'] * (messages | length) * 20000000) | sort | unique | list | length }}",
}
LARGE = {
    "repetition": "{{ 'x' * 10 ** 10 }}",
    "a format": "{{ '%9999999999d' % 1 }}",
    "another format": "{{ '{:>9999999999}'.format(1) }}",
    "a filter": "{{ 'x' | center(9999999999) }}",
    "doubling": DOUBLED.replace("FIRST", "'x'").replace("NEXT", "ns.x ~ ns.x"),
    "doubling lists": DOUBLED.replace("FIRST", "[1]").replace("NEXT", "ns.x + ns.x"),
    "long pieces": "{{ 'x' * 9999999 }}",
    "many pieces": "{% for a in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
    "a list of a range": "{{ range(99999) | list * 9999 }}",
    "depth": "{{ " + "(" * 100 + "1" + ")" * 100 + " }}{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}
REACHING = {
    "a class": "{{ ''.__class__.__mro__ }}",
    "by a filter": "{{ (''|attr('__class__')).__mro__ }}",
    "by a format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "by a map": "{{ [''] | map(attribute='__class__') | first }}",
    "globals of a helper": "{{ raise_exception.__globals__['sys'] }}",
    "globals of a class": "{{ cycler.__init__.__globals__.os.environ }}",
    "an environment": "{{ self._TemplateReference__context.environment.globals }}",
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}{{ os.environ }}",
    "a namespace": "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
    "an underscore of a namespace": "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns.__dict__ }}",
    "code of a function": "{{ strftime_now.__code__.co_consts }}",
    "a generator's frame": "{{ (messages | map('upper')).gi_frame.f_globals }}",
}
SECRETS = ("os.environ", "<class", "root:", "/usr/", "/lib/python", "repoagent", "mappingproxy", "module 'sys'")

Render = Callable[[str], str]


@pytest.fixture
def render(request: pytest.FixtureRequest) -> Render:
    """What a template makes of a conversation; its process ends with the test."""

    def made(template: str, limits: Limits | None = None) -> str:
        renderer = ChatRenderer(ChatSource({"default": template}, {}), "1", limits or Limits(chat_template_ms=200))
        request.addfinalizer(renderer.close)
        return renderer.render(USER)

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_ended(name: str, render: Render) -> None:
    with pytest.raises(RepoAgentError, match=r"--limit-chat-template-ms|too much memory"):
        render(ENDLESS[name])


def test_a_template_that_takes_all_day_to_read_is_refused_at_the_load(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jinja computes what depends on nothing while it reads."""
    monkeypatch.setattr(renderer_module, "_SETUP_SECONDS", 0.2)
    with pytest.raises(ConfigError, match="takes too long to read, or too much memory"):
        render("{{ (['x'] * 20000000) | sort | unique | list | length }}" * 50)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_takes_all_memory_gets_none(name: str, render: Render) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"too much memory|more than 4194304 characters|--limit-chat-template-ms|fails: "
    ):
        render(LARGE[name])


@pytest.mark.parametrize("name", REACHING)
def test_a_template_that_reaches_for_python_gets_nothing_of_it(name: str, render: Render) -> None:
    try:
        text = render(REACHING[name])
    except InvalidArgumentError as error:
        text = (
            str(error).partition("chat template")[2].replace("<class ", "")
        )  # Names of types in refusals are no reach.
    assert not [secret for secret in SECRETS if secret in text], text


@pytest.mark.slow
def test_a_process_of_templates_has_no_secrets_and_no_files(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_KEY_OF_A_TEST", "secret")
    monkeypatch.setenv("AN_ORDINARY_NAME", "secret")
    renderer = ChatRenderer(ChatSource({"default": "x"}, {}), "1")
    process = renderer._process
    assert process is not None
    pid = process._process.pid
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert all(target.startswith(("socket:", "/dev/null")) for target in targets), targets
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0                    0" in limits
    renderer.close()


def test_a_template_of_ten_megabytes_is_refused_at_the_load(core: ServingCore, write_llm: WriteModel) -> None:
    (write_llm() / "1" / "chat_template.jinja").write_text("{# " + "x" * 10_000_000 + " #}")
    with pytest.raises(RepoAgentError, match="has 10000006 bytes, more than 1048576; --limit-chat-template-bytes"):
        core.load("m")


def test_a_template_that_is_a_link_out_of_the_model_is_not_read(
    core: ServingCore, write_llm: WriteModel, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("a secret")
    (write_llm() / "1" / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(RepoAgentError) as failure:
        core.load("m")
    assert "a secret" not in str(failure.value)


@pytest.mark.slow
def test_the_server_goes_on_while_a_template_takes_its_time(core: ServingCore, write_llm: WriteModel) -> None:
    (write_llm("bad") / "1" / "chat_template.jinja").write_text(ENDLESS["loops in loops"])
    (write_llm("good") / "1" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    core.load("bad")
    core.load("good")
    asks = Asker(core)

    def conversation(model: str, text: str = "messages") -> object:
        return asks.send(asks.request(USER, model, prompt=text, max_tokens=2))

    stuck = conversation("bad")
    assert len(conversation("good").texts()) == 1  # type: ignore[attr-defined]
    assert asks.ask("hello", "bad", max_tokens=2).one()
    (refusal,) = stuck.wait()  # type: ignore[attr-defined]
    assert "--limit-chat-template-ms" in str(refusal.error)
    assert asks.ask("hello", "bad", max_tokens=2).one()


@pytest.mark.slow
def test_an_unload_does_not_wait_for_a_template(core: ServingCore, write_llm: WriteModel) -> None:
    """Its process is killed; and with the model it is gone."""
    before, others = threading.active_count(), children(os.getpid())
    (write_llm("m") / "1" / "chat_template.jinja").write_text("x")
    core.load("m")
    renders = children(os.getpid()) - others
    assert renders
    core.unload("m")
    gc.collect()
    assert not children(os.getpid()) & renders
    assert threading.active_count() <= before + 4


@pytest.mark.slow
def test_a_killed_server_leaves_no_process_that_renders(tmp_path: Path) -> None:
    """One that waits sees the end of its socket, one in a loop the end of its time."""
    program = tmp_path / "server.py"
    program.write_text(
        "import os, sys, threading\n"
        "from repoagent.limits import Limits\n"
        "from repoagent_llm.backend.chat.renderer import ChatRenderer\n"
        "from repoagent_llm.backend.chat.source import ChatSource\n"
        f"texts = ['x', {ENDLESS['loops in loops']!r}]\n"
        "made = [ChatRenderer(ChatSource({'default': text}, {}), '1') for text in texts]\n"
        f"threading.Thread(target=made[1].render, args=({USER!r},), daemon=True).start()\n"
        "print(*[one._process._process.pid for one in made], flush=True)\n"
        "sys.stdin.read()\n"
    )
    server = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    pids = [int(word) for word in server.stdout.readline().split()]
    watched = [os.pidfd_open(pid) for pid in pids]
    server.kill()
    server.communicate()
    for fd in watched:
        assert select.select([fd], [], [], 30)[0], "a process is left"
        os.close(fd)
