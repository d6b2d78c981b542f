"""The agent."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from repoagent.api import Agent, AgentModel, InvalidArgumentError, NotFoundError
from repoagent_authorize.endpoint import ask
from repoagent_authorize.grant import Grant, now
from repoagent_authorize.licence import LARGEST, check_licence, read_public_key
from repoagent_authorize.options import Options, parse_parameters
from repoagent_authorize.watch import Watch

__all__ = ["AuthorizeAgent"]


@dataclass(slots=True)
class _State:
    grant: Grant
    watch: Watch | None = None


class AuthorizeAgent(Agent):
    """Loads a model only while an HTTP endpoint or a signed licence allows it; asks for its unload when that ends."""

    api_version = 1

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock

    def load(self, model: AgentModel) -> None:
        """Refuse the model unless it is authorized now."""
        options = parse_parameters(model.parameters)
        moment = self._clock()
        licensed = options.licence is not None
        grant = _licence_grant(model, options, moment) if licensed else _endpoint_grant(model, options)
        grant.check(moment)
        model.state = _State(grant)
        model.report(note=f"{grant.by} {'has no end' if grant.until is None else f'ends at {grant.until.isoformat()}'}")

    def load_complete(self, model: AgentModel) -> None:
        """From now on somebody has to notice when the authorization ends."""
        state: _State = model.state
        grant = state.grant
        if grant.until is not None:
            reason = f"{grant.by} ended at {grant.until.isoformat()}"
            state.watch = Watch(grant.until, lambda: model.request_unload(reason), clock=self._clock)

    def unload(self, model: AgentModel) -> None:
        """The model goes, for whatever reason: nobody needs to be asked any more."""
        state: _State = model.state
        if state.watch is not None:
            state.watch.stop()
            state.watch = None


def _endpoint_grant(model: AgentModel, options: Options) -> Grant:
    assert options.url is not None
    token = model.key(options.token).decode().strip() if options.token is not None else None
    return ask(options.url, model.name, token=token, timeout=options.timeout)


def _licence_grant(model: AgentModel, options: Options, moment: datetime) -> Grant:
    key = read_public_key(_public_key(model, options))
    fs, path = model.filesystem(), f"{model.root().rstrip('/')}/{options.licence}"
    try:
        content: bytes = fs.cat_file(path, start=0, end=LARGEST + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise NotFoundError(f"the model has no licence file {options.licence}") from None
    if len(content) > LARGEST:
        raise InvalidArgumentError(f"{options.licence} is larger than {LARGEST} bytes, so it is no licence file")
    return check_licence(content, key, model.name, moment)


def _public_key(model: AgentModel, options: Options) -> bytes:
    if options.public_key is not None:
        return model.key(options.public_key)
    root: Path | None = model.trust_roots.get(options.trust_root or "")
    if root is None:
        raise InvalidArgumentError(f"the operator's policy has no trust root '{options.trust_root}' for this model")
    return root.read_bytes()
