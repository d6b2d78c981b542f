"""T3: who can write to the shared cache gets nothing loaded that not enough trusted builders have made."""

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from repoagent.api import Agent, AgentModel, ConversionSource
from repoagent.api.envelopes import key_id, sign
from repoagent.audit import Audit
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.loader.converting.registry import Converters
from repoagent.loader.converting.shared import Trust, open_shared
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.filesystems import open_filesystem
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.repositories.url import parse_url
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent.testing import write_files
from repoagent.testing.faults import FaultInjection, TestedAgents
from tests.loader.converting.samples import CONVERTERS

pytestmark = pytest.mark.slow

Keys = dict[str, ec.EllipticCurvePrivateKey]


class Shouting(Agent):
    """Converts ``1/model.txt``; a confidential load where the test says so."""

    api_version = 1
    guard = True
    confidential = False

    def load(self, model: AgentModel) -> None:
        target = model.acquire_location(confidential=self.confidential)
        source = ConversionSource(model.localize() / "1", "model.txt", "1/model.txt", model.config)
        conversion = model.conversion("text", "upper", source, {"mark": model.parameters["mark"]})
        (target / "1").mkdir()
        conversion.write(target / "1")
        model.update_location(target)


class Log(Audit):
    """The audit log of one server."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []

    def record(self, event: str, result: str, what: Any, actor: Any = None) -> None:
        del actor
        self.events.append((event, result, what))

    demand = note = record


class Site:
    """A server with a cache of its own. ``builds`` counts the child processes of all sites."""

    def __init__(self, place: Path, marks: Path, loader: Loader, log: Log) -> None:
        self.place, self.marks, self.loader, self.log = place, marks, loader, log

    @property
    def builds(self) -> int:
        return len(list(self.marks.iterdir()))

    def load(self, text: str = "abc") -> tuple[bytes, str]:
        """The result, and the notes of the load."""
        parameter = f'parameters {{ key: "mark" value: "{self.marks}" }}'
        config = f'model_repository_agents {{ agents [ {{ name: "shout" {parameter} }} ] }}'
        model = write_files(self.place / "m", {"1/model.txt": text.encode(), "config.pbtxt": config.encode()})
        chain = self.loader.load(open_source("m", str(model)))
        try:
            result = chain.files.bytes("1/model.upper")
            return result, str([action.notes for entry in chain.report.entries for action in entry.actions])
        finally:
            chain.complete()
            chain.unload()
            chain.unload_complete()


NewSite = Callable[..., Site]


@pytest.fixture(params=["directory", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "directory":
            return str(tmp_path / "shared")
        case "memory":
            return f"memory://shared-{uuid.uuid4().hex}"
        case _:
            request.getfixturevalue("s3_credentials")
            endpoint, name = request.getfixturevalue("s3_endpoint"), f"bucket-{uuid.uuid4().hex}"
            shared = f"s3://{endpoint}/{name}"
            open_filesystem(parse_url(shared)).mkdir(name)
            return f"{shared}/conversions"


@pytest.fixture
def keys() -> Keys:
    return {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ci", "gpu", "stranger")}


@pytest.fixture
def new_site(tmp_path: Path, url: str, keys: Keys) -> Iterator[NewSite]:
    """Starts servers: ``signs`` names the key for what it builds, ``trusts`` those of others."""
    marks = tmp_path / "marks"
    marks.mkdir()
    with ExitStack() as stack:

        def make(
            signs: str = "",
            trusts: Sequence[str] = (),
            needed: int = 1,
            only: bool = False,
            where: str = url,
            **given: Any,
        ) -> Site:
            place = tmp_path / f"site-{uuid.uuid4().hex}"
            public = {name: place / f"{name}.pem" for name in trusts}
            for name, path in public.items():
                form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                write_files(place, {path.name: keys[name].public_key().public_bytes(*form)})
            key = keys[signs].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) if signs else None
            trust = Trust(public, needed, only)
            most = given.pop("most", 1 << 20)
            shared = open_shared(where, key, lambda _model: trust, filesystems={}, timeout=2, most=most)
            log = Log()
            agent = type("Agent", (Shouting,), given)
            workspace = stack.enter_context(WorkspaceRoot(place / "workspace", allow_swap=True))
            loader = Loader(
                TestedAgents({"shout": agent}, AgentRegistry(None), FaultInjection()),
                workspace,
                Services(
                    cache=stack.enter_context(Cache(place / "cache")),
                    converters=Converters(CONVERTERS),
                    shared=shared,
                    audit=log,
                ),
            )
            stack.callback(loader.close, None)
            return Site(place, marks, loader, log)

        yield make


class Store:
    """What an attacker does with the shared cache."""

    def __init__(self, url: str, keys: Keys) -> None:
        place = parse_url(url)
        self.fs, self.root, self.keys = open_filesystem(place), place.path.rstrip("/"), keys

    def files(self, part: str = "") -> list[str]:
        self.fs.invalidate_cache()
        return sorted(path for path in self.fs.find(self.root) if part in path) if self.fs.exists(self.root) else []

    @property
    def statement(self) -> str:
        (path,) = self.files("/statements/")
        return path

    @property
    def blob(self) -> str:
        (path,) = self.files("/blobs/")
        return path

    def named(self, builder: str) -> str:
        """Where the statement of ``builder`` belongs."""
        return f"{self.statement.rpartition('/')[0]}/{key_id(self.keys[builder].public_key())}.dsse.json"

    def sign(self, builder: str, change: Callable[[Any], object]) -> None:
        """A statement that ``builder`` signs: the one that is there, changed."""
        where = self.named(builder)
        statement = json.loads(base64.b64decode(json.loads(self.fs.cat_file(self.statement))["payload"]))
        change(statement)
        self.fs.pipe_file(where, json.dumps(sign(json.dumps(statement).encode(), self.keys[builder])).encode())

    def other_result(self, statement: Any) -> None:
        data = b"EVIL"
        digest = hashlib.sha256(data).hexdigest()
        self.fs.pipe_file(f"{self.blob.rpartition('/')[0]}/{digest}", data)
        statement["subject"][0]["digest"]["sha256"] = digest


@pytest.fixture
def store(url: str, keys: Keys) -> Store:
    return Store(url, keys)


def test_the_second_server_starts_no_child_process_and_names_the_builders(new_site: NewSite) -> None:
    first, second = new_site("ci"), new_site("gpu", ["ci"])
    assert first.load()[0] == b"ABC"
    assert first.builds == 1
    result, notes = second.load()
    assert (result, second.builds) == (b"ABC", 1)
    assert "from the shared cache, built by ci" in notes
    assert "from the cache" in second.load()[1]


def test_two_builders_that_agree_are_enough_for_two(new_site: NewSite) -> None:
    for builder in ("ci", "gpu"):
        new_site(builder).load()
    site = new_site(trusts=["ci", "gpu"], needed=2, only=True)
    assert "built by ci, gpu" in site.load()[1]
    assert site.builds == 2


def blob_changed(store: Store) -> None:
    store.fs.pipe_file(store.blob, b"EVI")


def blob_missing(store: Store) -> None:
    store.fs.rm_file(store.blob)


def blob_without_end(store: Store) -> None:
    store.fs.pipe_file(store.blob, b"EVIL" * (1 << 19))


def signed_by_a_stranger(store: Store) -> None:
    trusted = store.statement
    store.sign("stranger", store.other_result)
    store.fs.rm_file(trusted)


def renamed_to_a_trusted_key(store: Store) -> None:
    trusted, stranger = store.statement, store.named("stranger")
    store.sign("stranger", store.other_result)
    store.fs.pipe_file(trusted, store.fs.cat_file(stranger))


def payload_changed(store: Store) -> None:
    envelope = json.loads(store.fs.cat_file(store.statement))
    payload = base64.b64decode(envelope["payload"]).replace(b"all capitals", b"all_capitals")
    store.fs.pipe_file(store.statement, json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}).encode())


def not_json(store: Store) -> None:
    store.fs.pipe_file(store.statement, b"[" * 100_000)


def signatures_without_end(store: Store) -> None:
    envelope = json.loads(store.fs.cat_file(store.statement))
    signatures = [{"sig": "AA=="}] * 20_000 + envelope["signatures"]
    store.fs.pipe_file(store.statement, json.dumps(envelope | {"signatures": signatures}).encode())


def nothing_there(store: Store) -> None:
    store.fs.rm_file(store.statement)


def _signed(*place: Any, value: Any) -> Callable[[Store], None]:
    def attack(store: Store) -> None:
        def change(statement: Any) -> None:
            at = statement
            for name in place[:-1]:
                at = at[name]
            at[place[-1]] = value

        store.sign("ci", change)

    attack.__name__ = "_".join(map(str, place[-2:]))
    return attack


BUILD, RUN = ("predicate", "buildDefinition"), ("predicate", "runDetails")
ATTACKS = [
    blob_changed,
    blob_missing,
    blob_without_end,
    signed_by_a_stranger,
    renamed_to_a_trusted_key,
    payload_changed,
    not_json,
    signatures_without_end,
    nothing_there,
    _signed(*BUILD, "resolvedDependencies", 0, "digest", "sha256", value="0" * 64),
    _signed(*BUILD, "externalParameters", "settings", "then", value="other"),
    _signed(*BUILD, "externalParameters", "target", value="other"),
    _signed(*BUILD, "externalParameters", "to", value="other"),
    _signed(*BUILD, "more", value=1),
    _signed(*RUN, "builder", "version", "shouter", value="6"),
    _signed(*RUN, "builder", "version", "converter", value="0"),
    _signed("subject", 0, "name", value="../model.upper"),
    _signed("subject", 0, "name", value="other"),
    _signed("subject", 0, "digest", "sha256", value="../../x"),
    _signed("subject", value=[]),
    _signed("subject", value={}),
    _signed("predicate", value=[]),
    _signed("predicateType", value="https://slsa.dev/verification_summary/v1"),
    _signed(*RUN, "byproducts", value=[]),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_gets_nothing_loaded(attack: Callable[[Store], None], new_site: NewSite, store: Store) -> None:
    new_site("ci").load()
    attack(store)
    site = new_site(trusts=["ci"])
    result, notes = site.load()
    assert (result, site.builds) == (b"ABC", 2)
    assert "not from the shared cache" in notes
    with pytest.raises(RepoAgentError, match="only conversions that its builders have signed"):
        new_site(trusts=["ci"], only=True).load()
    assert site.builds == 2


def test_one_builder_is_not_two(new_site: NewSite) -> None:
    new_site("ci").load()
    assert "1 of 2 builders" in new_site(trusts=["ci", "gpu"], needed=2).load()[1]
    with pytest.raises(RepoAgentError):
        new_site(trusts=["ci", "gpu"], needed=2, only=True).load()


@pytest.mark.parametrize("needed", [1, 2])
def test_builders_that_disagree_are_an_event_and_neither_is_taken(needed: int, new_site: NewSite, store: Store) -> None:
    new_site("ci").load()
    store.sign("gpu", store.other_result)
    site = new_site(trusts=["gpu", "ci"], needed=needed)
    assert site.load()[0] == b"ABC"
    assert site.builds == 2
    (event,) = [one for one in site.log.events if one[0] == "conversion"]
    assert event[1] == "disagreed"
    assert "gpu, ci made different results" in event[2]["error"]


def test_another_models_result_is_none_of_this(new_site: NewSite, store: Store) -> None:
    new_site("ci").load("xyz")
    (other,) = {path.removeprefix(store.root).split("/")[1] for path in store.files()}
    new_site("ci").load("abc")
    (own,) = {path.removeprefix(store.root).split("/")[1] for path in store.files()} - {other}
    for path in store.files(f"/{other}/"):
        store.fs.pipe_file(path.replace(other, own), store.fs.cat_file(path))
    site = new_site(trusts=["ci"])
    assert site.load("abc")[0] == b"ABC"
    assert site.builds == 3


def test_what_came_of_a_confidential_load_is_not_published(new_site: NewSite, store: Store) -> None:
    assert new_site("ci", confidential=True).load()[0] == b"ABC"
    assert store.files() == []
    with pytest.raises(RepoAgentError, match="confidential"):
        new_site(trusts=["ci"], only=True, confidential=True).load()


def test_what_former_builders_made_is_nothing_for_a_policy_without_them(new_site: NewSite, tmp_path: Path) -> None:
    """Also where it lies in the server's own cache."""
    new_site("ci").load()
    site = new_site(trusts=["ci"])
    site.load()
    later = new_site(trusts=["gpu"])
    for name in ("objects", "meta"):
        assert not (later.place / "cache" / name).exists()
    (site.place / "cache").rename(later.place / "cache")
    assert "not from the shared cache" in later.load()[1]


def test_what_was_built_here_is_nothing_for_a_policy_that_takes_only_what_builders_signed(new_site: NewSite) -> None:
    """Also where it lies in the server's own cache, from the time of another policy."""
    site = new_site(trusts=["ci"])
    site.load()
    later = new_site(trusts=["ci"], only=True)
    (site.place / "cache").rename(later.place / "cache")
    with pytest.raises(RepoAgentError, match="only conversions that its builders have signed"):
        later.load()


def test_one_key_under_two_names_is_not_two_builders(new_site: NewSite, keys: Keys) -> None:
    keys["gpu"] = keys["ci"]
    new_site("ci").load()
    with pytest.raises(RepoAgentError, match="names one builder's key twice"):
        new_site(trusts=["ci", "gpu"], needed=2, only=True).load()


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
def test_a_file_comes_in_pieces(piece: int, new_site: NewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    new_site("ci").load()
    monkeypatch.setattr("repoagent.loader.converting.shared._PIECE", piece)
    assert new_site(trusts=["ci"], only=True).load()[0] == b"ABC"


def test_a_store_that_does_not_answer_delays_a_build_and_no_more(new_site: NewSite) -> None:
    site = new_site("ci", ["gpu"], where="s3://http://127.0.0.1:9/none")
    result, notes = site.load()
    assert result == b"ABC"
    assert "not in the shared cache" in notes


def test_a_key_is_in_no_report_and_no_file_of_the_cache(new_site: NewSite, store: Store, keys: Keys) -> None:
    secret = keys["ci"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    line = secret.splitlines()[1]
    _, notes = new_site("ci").load()
    assert line not in notes.encode()
    assert not any(line in store.fs.cat_file(path) for path in store.files())


def test_a_key_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        open_shared("memory://x", b"AGE-SECRET-KEY-1", lambda _model: Trust(), filesystems={}, most=1)
    assert "AGE" not in str(raised.value)
