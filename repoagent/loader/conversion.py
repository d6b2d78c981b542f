"""One conversion of one load: the implementation of :class:`repoagent.api.Conversion`."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from repoagent.api.converters import (
    ConversionJob,
    ConversionPlan,
    ConversionSource,
    Converted,
    Converter,
    Product,
    Progressing,
)
from repoagent.beneath.opening import status_beneath
from repoagent.config import ModelConfig
from repoagent.errors import (
    CancelledError,
    InternalError,
    RepoAgentError,
    UnavailableError,
    UnsupportedError,
    error_of,
)
from repoagent.loader.converting.build_process import build_in_child, took_too_long
from repoagent.loader.converting.environments import jail_bytes, planned, runs_code
from repoagent.loader.converting.messages import BuildOrder
from repoagent.loader.converting.provenance import (
    definition_of,
    read_product,
    statement_name,
    tools_of,
    write_statement,
)
from repoagent.loader.converting.registry import Converters
from repoagent.loader.converting.result_files import link_or_copy, move, refuse_existing, refuse_foreign, refuse_special
from repoagent.loader.converting.shared import BuildersDisagreeError, Trust, Wanted
from repoagent.loader.load_context import LoadContext
from repoagent.storage.paths.trees import remove_tree

logger = logging.getLogger("repoagent.loader")

_ONLY_SHARED: Final = "the policy takes only conversions that its builders have signed"

_LAYOUT: Final = 1
"""Another one when what lies in the cache beside a result changes, so that an older one is not read."""


def cache_key(pair: tuple[str, str], converter_version: str, plan: ConversionPlan, digests: Mapping[str, str]) -> str:
    """A name made of all that the result depends on; ``InternalError`` if the plan has values that JSON has not."""
    depends_on: dict[str, Any] = {
        "layout": _LAYOUT,
        "formats": pair,
        "converter": converter_version,
        "inputs": dict(digests),
        "output": plan.output,
        "settings": dict(plan.settings),
        "tools": dict(plan.tools),
        "target": plan.target,
    }
    try:
        text = json.dumps(depends_on, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InternalError(
            f"the converter from '{pair[0]}' to '{pair[1]}' made a plan without a key: {error}"
        ) from error
    return f"convert-{hashlib.sha256(text.encode()).hexdigest()}"


class Reporter(Protocol):
    """Adds to the load report; see :meth:`repoagent.api.AgentModel.report`."""

    def __call__(
        self, *, bytes_read: int = 0, bytes_written: int = 0, digests: Mapping[str, str] | None = None, note: str = ""
    ) -> None: ...


class LoadConversion:
    """A planned conversion, for one thread. Raises if the converter refuses the source, or does not know an option."""

    def __init__(
        self,
        load: LoadContext,
        converters: Converters,
        pair: tuple[str, str],
        source: ConversionSource,
        options: Mapping[str, str],
        *,
        progress: Progressing,
        report: Reporter,
    ) -> None:
        pair, source, options = converters.redirected(pair, source, options)
        self._load = load
        self._pair = pair
        self._label = f"the converter from '{pair[0]}' to '{pair[1]}'"
        self._target = converters.target(pair)
        self._converter: Converter = converters.get(pair)
        self._source = source
        self._progress = progress
        self._report = report
        self._product = Product()
        self._made: Mapping[str, str] = {}
        self._plan = self._made_plan(options)
        root = self._source.directory
        self._sizes = {name: status_beneath(root, name, follow=False).st_size for name in self._plan.inputs}

    @property
    def plan(self) -> ConversionPlan:
        return self._plan

    @property
    def input_bytes(self) -> int:
        return sum(self._sizes.values())

    def write(self, target: Path) -> Converted:
        refuse_existing(target, (self._plan.output, statement_name(self._plan)), self._source.label)
        started = time.monotonic()
        digests, read = self._digest_inputs()
        before = {path.relative_to(target).as_posix() for path in target.rglob("*")}
        how, written = self._obtain(target, digests)
        files = tuple(
            name
            for path in sorted(target.rglob("*"))
            if not path.is_dir() and (name := path.relative_to(target).as_posix()) not in before
        )
        built = how.startswith("built")
        if built:
            how = f"built after {time.monotonic() - started:.1f} s{how.removeprefix('built')}"
        directory = self._source.label.partition("/")[0]
        self._report(
            bytes_read=read,
            bytes_written=written,
            digests={f"{directory}/{name}": f"sha256:{digest}" for name, digest in digests.items()},
            note=f"{self._source.label}: {' to '.join(self._pair)}, {self._tools()}{how}",
        )
        for note in self._product.notes:
            self._report(note=f"{self._source.label}: {note}")
        return Converted(files, self._product, built, digests)

    def configure(self, config: ModelConfig) -> None:
        self._converter.configure(config, self._plan, self._product)

    def _digest_inputs(self) -> tuple[dict[str, str], int]:
        """SHA-256 of each input, and how many bytes were read for them."""
        found, read = self._load.digests.digests(
            self._source.directory,
            dict.fromkeys(self._plan.inputs, ("sha256",)),
            cancelled=self._is_cancelled,
            progress=lambda done, total: self._progress(done, total, "reading"),
        )
        return {name: digests["sha256"] for name, digests in found.items()}, read

    def _made_plan(self, options: Mapping[str, str]) -> ConversionPlan:
        plan = planned(self._converter, self._pair, self._source, options, self._load.services.converter_settings)
        if not isinstance(plan, ConversionPlan):
            raise InternalError(f"{self._label}: 'plan' returned a {type(plan).__name__}, not a ConversionPlan")
        return plan

    def _tools(self) -> str:
        return "".join(f"{name} {version}, " for name, version in self._plan.tools.items())

    def _is_cancelled(self) -> bool:
        return self._load.cancelled

    def _obtain(self, target: Path, digests: Mapping[str, str]) -> tuple[str, int]:
        """How the result came about, and how many bytes were written for it."""
        key = cache_key(self._pair, self._converter.version, self._plan, digests)
        trust = self._load.services.shared.trust(self._load.name)
        refused: list[RepoAgentError] = []
        made: list[tuple[str, int]] = []

        def build(directory: Path) -> None:
            try:
                how = self._fetch_or_build(directory, digests, key, trust)
            except RepoAgentError as error:
                refused.append(error)
                raise
            made[:] = [(how, _size_of(directory))]

        reason = self._not_kept()
        if reason is None:
            try:
                # What was built here, or by others, is nothing for a policy that trusts yet others.
                cached = self._load.cache.get_or_build(f"{key}-{trust.name}" if trust.builders else key, build)
            except UnavailableError as error:
                if refused:
                    raise  # by the converter itself, which would do so again
                # The cache is full; there may be room elsewhere.
                reason = str(error)
            else:
                self._product = read_product(cached, self._plan)
                written = link_or_copy(cached, target)
                if made and not written:
                    self._load.vouch(target, self._made)
                return made[0] if made else ("from the cache", written)
        if trust.only:
            raise UnavailableError(f"{self._source.label}: {_ONLY_SHARED}, and {reason}")
        directory = self._load.new_directory("converted")
        try:
            self._build(directory, digests)
            written = _size_of(directory)
            move(directory, target)
            self._load.vouch(target, self._made)
        finally:
            self._load.workspace.remove(directory)
        return f"built, not kept: {reason}", written

    def _not_kept(self) -> str | None:
        """Why the result may not be kept; None if it may."""
        directory = self._source.directory
        if not self._load.holds(directory):
            return "the source is not a private copy, and may change meanwhile"
        try:
            _ = self._load.cache
        except UnsupportedError as error:
            return str(error)
        return None

    def _fetch_or_build(self, directory: Path, digests: Mapping[str, str], key: str, trust: Trust) -> str:
        """How the result came about that is in ``directory`` now, and may be kept."""
        definition = definition_of(self._pair, self._plan, digests)
        wanted = Wanted(key, self._plan.output, definition, tools_of(self._converter.version, self._plan))
        if trust.builders and (builders := self._fetch(wanted, directory, trust)):
            return f"from the shared cache, built by {', '.join(builders)}"
        self._build(directory, digests)
        try:
            self._load.services.shared.publish(wanted, directory)
        except RepoAgentError as error:
            self._report(note=f"{self._source.label}: not in the shared cache: {error}")
        return "built"

    def _fetch(self, wanted: Wanted, directory: Path, trust: Trust) -> tuple[str, ...]:
        """Who built what is in ``directory`` now; none if it is to be built here."""
        try:
            builders = self._load.services.shared.fetch(wanted, directory, trust, self._is_cancelled)
            read_product(directory, self._plan)
        except CancelledError:
            raise
        except (OSError, RepoAgentError) as error:
            remove_tree(directory)
            directory.mkdir(mode=0o700)
            if isinstance(error, BuildersDisagreeError):
                self._load.audit.builders_disagree(f"{wanted.key}: {error}")
            if trust.only:
                raise UnavailableError(f"{self._source.label}: {_ONLY_SHARED}: {error}") from error
            self._report(note=f"{self._source.label}: not from the shared cache: {error}")
            return ()
        return builders

    def _build(self, directory: Path, digests: Mapping[str, str]) -> None:
        if self._is_cancelled():
            raise CancelledError("the conversion was given up: the load was cancelled")
        started, begun = datetime.now(UTC), time.monotonic()

        def proceed() -> None:
            if self._is_cancelled():
                raise CancelledError("the conversion was given up: the load was cancelled")
            seconds = self._load.services.limits.build_seconds
            if self._converter.in_child and 0 < seconds < time.monotonic() - begun:
                raise took_too_long(self._label, seconds)

        try:
            if self._converter.in_child or runs_code(self._converter):
                self._product = self._build_in_child(directory)
            else:
                self._product = self._build_here(directory)
        except CancelledError:
            raise
        except RepoAgentError as error:
            raise error_of(error.code, f"{self._source.label}: {error.message}") from error
        refuse_special(directory)
        if jail_bytes(self._converter, self._load.services.limits):
            refuse_foreign(directory, self._plan.output, self._pair[1], self._source.label)
        made_by, plan, product = self._converter.version, self._plan, self._product
        self._made = write_statement(directory, self._pair, made_by, plan, digests, product, started, proceed)

    def _build_here(self, directory: Path) -> Product:
        job = ConversionJob(self._source.directory, directory, self._plan.settings, self._progress, self._is_cancelled)
        return self._converter.build(job)

    def _build_in_child(self, directory: Path) -> Product:
        order = BuildOrder(
            self._target,
            str(self._source.directory),
            str(directory),
            dict(self._plan.settings),
            self._load.confidential,
            self._load.services.converter_settings.environment(self._pair[0]),
            self._plan.inputs,
            jail_bytes(self._converter, self._load.services.limits),
        )
        scratch = self._load.new_directory("building")
        try:
            return build_in_child(
                order,
                scratch,
                self._label,
                progress=self._progress,
                cancelled=self._is_cancelled,
                seconds=self._load.services.limits.build_seconds,
            )
        finally:
            self._load.workspace.remove(scratch)


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
