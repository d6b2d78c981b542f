"""Receipts of loads: what they state beside the report, and the plug-in that signs them."""

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api.attesting import Attestation, AttestedLoad, Attestor, AttestorOptions
from repoagent.api.report import LoadReport
from repoagent.beneath.opening import walk_beneath
from repoagent.errors import RepoAgentError, UnavailableError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.loader.agent_code import code_of
from repoagent.loader.discovery import AgentInfo, AgentRegistry
from repoagent.loader.plugins import PluginManager
from repoagent.public_text import public_values
from repoagent.storage.workspaces.private import check_parents

if TYPE_CHECKING:
    from repoagent.loader.load_context import LoadContext
    from repoagent.loader.shared_read import SharedRead

logger = logging.getLogger("repoagent.loader")


@cache
def _start_of_process() -> int:
    """In nanoseconds since 1970; rounded down. Plug-ins, and with them parts of agents, may be imported before this."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestSettings:
    """The operator's wish for receipts."""

    key: str
    """The reference of the private key."""
    directory: Path | None = None
    required: bool = False
    """Whether a model is refused when its receipt cannot be made."""
    plaintext: bool = False
    """Whether receipts have digests of the plaintext of confidential models: they show who holds a file."""
    verifier: str = "urn:repoagent:server"
    in_answers: bool = False
    """Whether answers to requests name the receipt of what answered."""


@dataclass(frozen=True, slots=True)
class Attesting:
    """Makes the receipts of a loader. Safe to use from any thread."""

    attestor: Attestor
    settings: AttestSettings
    agents: AgentRegistry
    rule: Callable[[str], Mapping[str, Any]]
    """The policy, and which of its rules is for a model; empty without one."""

    def code(self, agent: str) -> Mapping[str, str]:
        """Where the code of ``agent`` comes from: its distribution, version and SHA-256 of the RECORD of that.

        Without the digest where RECORD may list other code than that which runs.
        """
        try:
            info = self.agents.find(agent)
        except RepoAgentError:
            return {}
        found = {"distribution": info.distribution, "version": info.version, "record_sha256": _record(info)}
        return {name: value for name, value in found.items() if value}

    def attest(self, load: AttestedLoad) -> Attestation:
        """The receipt of ``load``; raises ``UnavailableError`` if it cannot be made."""
        try:
            return replace(self.attestor.attest(load), in_answers=self.settings.in_answers)
        except Exception as error:  # whatever a plug-in raises, the load goes on to its end
            known = str(error) if isinstance(error, RepoAgentError) else type(error).__name__
            reason = error.strerror if isinstance(error, OSError) else known
            raise UnavailableError(f"the receipt of this load cannot be made: {reason}") from error


def open_attesting(
    settings: AttestSettings,
    key: bytes,
    plugins: PluginManager,
    agents: AgentRegistry,
    rule: Callable[[str], Mapping[str, Any]],
) -> Attesting:
    """What makes receipts by ``settings``, with the plug-in that is installed for it.

    Raises:
        UnsupportedError: none is.
        InvalidArgumentError: another user owns the directory, or one above it, and could put old receipts there.
        RepoAgentError: it does not take the key, or the directory.
    """
    registered = plugins.registry("attestors")
    if not registered:
        hint = install_hint("repoagent-attest")
        raise UnsupportedError(f"--attest-key needs the package repoagent-attest, which is not installed; {hint}")
    if settings.directory is not None:
        check_parents(settings.directory / "receipt", purpose="receipt")
    module, _, attribute = next(iter(registered.values())).partition(":")
    make = getattr(import_module(module), attribute)
    attestor = make(AttestorOptions(key=key, directory=settings.directory, verifier=settings.verifier))
    return Attesting(attestor, settings, agents, rule)


class LoadReceipt:
    """The receipt of one load, once it is made: what came, what is served. Used by one thread at a time."""

    def __init__(self, load: "LoadContext") -> None:
        self._load = load
        self._attesting = load.services.attesting
        # What comes as plaintext of an earlier load is confidential from the start.
        self._states_source = self._attesting is not None and self._may_tell
        self._looked = self._missed = False
        self._came: Mapping[str, str] | None = None
        self._left: Mapping[str, str] | None = None
        self.confidential_from: int | None = None
        """The entry from which on agents may report on plaintext."""
        self.made: Attestation | None = None

    @property
    def algorithms(self) -> tuple[str, ...]:
        """What it needs to be known of every file of the model that comes."""
        return ("sha256",) if self._states_source else ()

    @property
    def lacks_source(self) -> bool:
        """Whether agents worked on what came before it could be stated."""
        return self._missed

    def look_at_source(self) -> None:
        """Before the first agent sees the files: what it is given is a copy, and what came is stated by that."""
        if self._attesting is None or self._looked:
            return
        self._load.isolate(hashed=True)
        if self._states_source:
            self._came = tree_digests(self._load)
        self._looked, self._missed = True, False

    def source_was_read(self, read: "SharedRead") -> None:
        """Without a copy: what came are the bytes that an agent took, by what it stated of them."""
        if self._states_source and not self._looked:
            self._came = read.read_files()
            self._looked, self._missed = self._came is not None, self._came is None

    def look_at_result(self) -> None:
        """After the last agent: the files are where no one changes them, and are hashed now.

        So what is served is what is stated, even if the model has code that changes its own files when it is loaded.
        """
        if self._attesting is not None:
            self._load.isolate(hashed=True)
            self._left = tree_digests(self._load) if self._may_tell else None

    def make(self, report: LoadReport, *, passed: bool) -> bool:
        """Sign what the load came to, once; whether that was done now. Raises ``UnavailableError`` if it cannot be
        done, and a model without a receipt must not serve."""
        attesting = self._attesting
        if attesting is None or self.made is not None:
            return False
        try:
            self.made = attesting.attest(self._attested(report, passed, attesting.settings))
        except RepoAgentError as error:
            if passed and attesting.settings.required:
                raise
            logger.error("model '%s': %s", self._load.name, error)
        return self.made is not None

    def _attested(self, report: LoadReport, passed: bool, settings: AttestSettings) -> AttestedLoad:
        if self._came is None:
            raise UnavailableError(
                "no receipt can be made: the model came as plaintext of a confidential load, or was not read "
                "(--attest-plaintext allows digests of plaintext)"
            )
        trees = {"model": self._came}
        # Moved or not: an agent may have written to the copy that it was given.
        if passed and self._left is not None and (self._left != self._came or self._load.moved):
            trees["served"] = self._left
        hidden = None if settings.plaintext else self.confidential_from
        # A client may ask for it: as in its report, no private place and no store of the operator is named.
        public = LoadReport.from_dict(public_values(report.to_dict()))
        return AttestedLoad(report=public, passed=passed, trees=trees, confidential_from=hidden)

    @property
    def _may_tell(self) -> bool:
        return not self._load.confidential or (self._attesting is not None and self._attesting.settings.plaintext)


def tree_digests(load: "LoadContext") -> dict[str, str]:
    """SHA-256 of every file where ``load`` is, which is on this machine; read are those not known already. Raises
    ``OSError`` or a ``RepoAgentError`` if one cannot be read."""
    root = Path(load.place.source.root)
    names = [path for path, mode, _ in walk_beneath(root, follow=True) if stat.S_ISREG(mode)]
    found, _ = load.digests.digests(root, dict.fromkeys(names, ("sha256",)), follow=True)
    return {path: digests["sha256"] for path, digests in found.items()}


def _record(info: AgentInfo) -> str:
    """Empty for an editable package, whose RECORD lists no code, and for one whose files are not those of RECORD.

    What was replaced since this process began may be in memory as it was before. The kernel sets the time of a change.
    """
    if not info.distribution:
        return ""
    try:
        code = _code_of(replace(info, state="", error=None))
        replaced = any(os.stat(path).st_ctime_ns >= _start_of_process() for path in code.files)
    except Exception:  # whatever is wrong with its files, a receipt that states less is still true
        return ""
    return "" if replaced else code.digest


_code_of: Final = cache(code_of)
