"""What the chain itself costs: a load and an unload through the real loader with 0 to 5 agents that do nothing.

    python benchmarks/chain_overhead.py                 # exit status 1 if an agent costs more than the limit
    python benchmarks/chain_overhead.py --rounds 500
    python benchmarks/chain_overhead.py --mib 1024      # verify, decrypt and checksum as a request for a figure wants

Every agent is called with LOAD, LOAD_COMPLETE, UNLOAD and UNLOAD_COMPLETE and its four other methods. The numbers of
agents take turns, so that a slow moment of the machine hits all of them; the median of the rounds counts. An agent's
cost is the slope: what five agents take longer than none, divided by five.

Then an ONNX model of ``--mib`` passes verify, decrypt and checksum in several ways, in turns. In the first every agent
reads a copy and hashes for itself: neither do digests travel with the files, nor do agents share a read. In the second
digests travel. In the third verify and decrypt share one read, too, and in the fourth a receipt is made. The first and
the third are repeated with convert at the end. Beside these run ``openssl dgst`` of what is encrypted, ``age -d``, and
``openssl dgst`` of what came of it, in a row.

Printed are medians of the turns: bytes read and written per byte of the model, by the kernel's counters (of this
process and of its ended children, such as the converter's) and by the load report; the seconds of the load, its own and
those of all processors; and the shares of both of the way in which every agent hashes for itself. All of it in each of
``--directories``, on a disk with a warm and with a cold page cache.
"""

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from measures import columns, in_turns, options_of, table
from onnx import TensorProto, helper
from onnx_models import onnx_model
from repoagent_attest.attestor import DsseAttestor
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.agent import DecryptAgent
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from repoagent.api import Agent
from repoagent.api.attesting import AttestorOptions
from repoagent.beneath.kept_digests import KeptDigests
from repoagent.loader.attesting import Attesting, AttestSettings
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import LoadContext, Services
from repoagent.loader.loader import Loader
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent.testing import AgentHarness, FakeKeys

LIMIT_MS = 1.0
MOST = 5
MEMORY = Path("/dev/shm")
FLOAT = TensorProto.FLOAT
BY_ITSELF = "every agent hashes"
AT_THE_END = ", convert"
FEATURES = 256
"""Of a row of the model's input."""


class NothingAgent(Agent):
    """Does nothing at any call."""

    api_version = 1


class Registry:
    """Every name is the agent that does nothing."""

    def load(self, _name: str) -> type[Agent]:
        return NothingAgent


def main() -> int:
    options = options_of(
        __doc__,
        rounds=(100, "how often each number of agents is measured"),
        mib=(256, "the size of the model that passes verify, decrypt and checksum"),
        turns=(5, "how often each way of loading it is measured"),
        directories=([Path(tempfile.gettempdir()), MEMORY], "where the model, and the copy of it, lie: disks, memory"),
    )
    rounds = options.rounds
    with tempfile.TemporaryDirectory() as scratch, loader(Path(scratch)) as subject:
        takes = {number: partial(once, subject, write_model(Path(scratch), number)) for number in range(MOST + 1)}
        found = in_turns(takes, rounds, warm=1)  # the first round imports and warms up
        medians = [statistics.median(times) * 1000 for times in found.values()]
    print(f"load and unload of one model, median of {rounds} rounds")
    more = ["-", *(f"{(taken - medians[0]) / agents:.3f}" for agents, taken in enumerate(medians) if agents)]
    rows = [(agents, f"{taken:.3f}", more[agents]) for agents, taken in enumerate(medians)]
    print(table(("agents", "ms", "ms more than none, per agent"), rows))
    for directory in options.directories:
        for cold in (False,) if directory == MEMORY else (False, True):
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                print(f"\nverify, decrypt, checksum of {options.mib} MiB in {directory}, page cache", end=" ")
                print("cold" if cold else "warm")
                protected(Path(scratch), options.mib, options.turns, cold=cold)
    cost = (medians[MOST] - medians[0]) / MOST
    print(f"chain overhead: {cost:.3f} ms per agent (limit: under {LIMIT_MS:g} ms)")
    return 0 if cost < LIMIT_MS else 1


@contextmanager
def loader(scratch: Path) -> Iterator[Loader]:
    with WorkspaceRoot(scratch / "workspace") as workspace, Cache(scratch / "cache") as cache:
        subject = Loader(Registry(), workspace, Services(cache=cache))
        yield subject
        subject.close()


def write_model(scratch: Path, agents: int) -> ModelSource:
    """A model whose configuration names ``agents`` agents."""
    root = scratch / "repository" / f"with_{agents}"
    (root / "1").mkdir(parents=True)
    (root / "1" / "model.onnx").write_bytes(bytes(1024))
    entries = ", ".join(f'{{ name: "nothing_{number}" }}' for number in range(agents))
    (root / "config.pbtxt").write_text(f"max_batch_size: 8\nmodel_repository_agents {{ agents [ {entries} ] }}\n")
    return open_source(root.name, str(root))


def once(subject: Loader, model: ModelSource) -> float:
    started = time.perf_counter()
    chain = subject.load(model)
    chain.complete()
    chain.unload()
    chain.unload_complete()
    return time.perf_counter() - started


def forget(file: Path) -> None:
    """Have the page cache drop ``file``, which a filesystem in memory does not do."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Protected:
    """A model that is encrypted and signed, without and with ``convert`` at the end, and what opens it."""

    root: Path
    converted: Path
    keys: FakeKeys
    identity: Path
    size: int
    """Bytes of the plaintext."""

    @property
    def file(self) -> Path:
        return self.root / "1" / "model.onnx.age"


def protected(scratch: Path, mib: int, turns: int, *, cold: bool) -> None:
    """Load a model in every way, in turns, and print what was read and written."""
    model = write_protected(scratch, mib)
    load, convert = partial(load_protected, scratch, model), partial(load_protected, scratch, model, model.converted)
    ways: dict[str, Callable[[], Sequence[float]]] = {
        BY_ITSELF: partial(load, model.root, travels=False, reads_once=False),
        "digests travel": partial(load, model.root, reads_once=False),
        "one read": partial(load, model.root),
        "one read, a receipt": partial(load, model.root, attesting=receipts()),
        BY_ITSELF + AT_THE_END: partial(convert, travels=False, reads_once=False),
        "one read" + AT_THE_END: convert,
    }
    if shutil.which("age") and shutil.which("openssl"):
        ways["openssl dgst, age -d, openssl dgst"] = partial(peers, scratch, model)
    found: dict[str, list[Sequence[float]]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, take in ways.items():
            if cold:
                forget(model.file)
            found[way].append(take())
    rows = []
    for way, each in found.items():
        whole = found[BY_ITSELF + AT_THE_END if way.endswith(AT_THE_END) else BY_ITSELF]
        *amounts, seconds, computed = columns(each)
        known = [f"{amount:.2f}" for amount in amounts] or ["-"] * 4
        shares = columns([(one[-2] / two[-2], one[-1] / two[-1]) for one, two in zip(each, whole, strict=True)])
        rows.append((way, *known, f"{seconds:.2f}", f"{shares[0]:.2f}", f"{computed:.2f}", f"{shares[1]:.2f}"))
    report = "in the report"
    print(table(("", "read", report, "written", report, "seconds", "share", "of processors", "share"), rows))


def write_protected(scratch: Path, mib: int) -> Protected:
    identity, key, keys = X25519Identity.generate(), ec.generate_private_key(ec.SECP256R1()), FakeKeys()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    keys.put("signer", public)
    keys.put("identity", identity.export().encode())
    (scratch / "identity").write_text(identity.export())
    plain, encrypted = scratch / "plain", scratch / "encrypted"
    width = (mib << 20) // (4 * FEATURES)
    weights = TensorProto(name="W", data_type=FLOAT, dims=(FEATURES, width), raw_data=os.urandom(mib << 20))
    plain.write_bytes(onnx_model([helper.make_node("MatMul", ["x", "W"], ["y"])], [weights], FEATURES, width))
    encrypt_file(plain, encrypted, [identity.recipient])
    size, digest = plain.stat().st_size, hashlib.sha256(plain.read_bytes()).hexdigest()
    plain.unlink()
    agents = [
        ("verify", "public_key", "fake:signer"),
        ("decrypt", "identity", "fake:identity"),
        ("checksum", "SHA256:1/model.onnx", digest),
        ("convert", "level", "basic"),
    ]
    roots = scratch / "m", scratch / "converted" / "m"
    for root, chain in zip(roots, (agents[:-1], agents), strict=True):
        (root / "1").mkdir(parents=True)
        entries = ", ".join(
            f'{{ name: "{name}" parameters {{ key: "{parameter}" value: "{value}" }} }}'
            for name, parameter, value in chain
        )
        (root / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {entries} ] }}\n")
        os.link(encrypted, root / "1" / "model.onnx.age")
        (root / "model.sig").write_bytes(sign(root, Identity(key), Serialization(), signature="model.sig"))
    encrypted.unlink()
    return Protected(*roots, keys, scratch / "identity", size)


def load_protected(
    scratch: Path,
    model: Protected,
    root: Path,
    *,
    travels: bool = True,
    reads_once: bool = True,
    attesting: Attesting | None = None,
) -> tuple[float, ...]:
    """Read and written, each by the kernel and by the report, per byte of the model; seconds, and of all processors.

    ``travels``: False is the chain in which every agent reads and hashes for itself. ``reads_once``: False is the chain
    without the read that agents share, which makes a copy first.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(DecryptAgent, "reads_once", reads_once))
        stack.enter_context(patch("repoagent.testing.harness.Services", partial(Services, attesting=attesting)))
        if not travels:
            stack.enter_context(digests_stay())
        harness = stack.enter_context(AgentHarness(scratch / "harness", keys=model.keys))
        before, started, computing = io_bytes(), time.perf_counter(), os.times()
        chain = harness.load(root)
        chain.attest([1])
        seconds, computed, after = time.perf_counter() - started, spent(computing), io_bytes()
        chain.complete()
        actions = [action for entry in chain.report.entries for action in entry.actions]
        chain.unload()
        chain.unload_complete()
    by_agents = sum(action.bytes_read for action in actions), sum(action.bytes_written for action in actions)
    amounts = after[0] - before[0], by_agents[0], after[1] - before[1], by_agents[1]
    return *(count / model.size for count in amounts), seconds, computed


@contextmanager
def digests_stay() -> Iterator[None]:
    """For a block, nothing is hashed as it is written, and no digest is kept for another agent."""
    isolate = LoadContext.isolate

    def unhashed(load: LoadContext, *, agent: str = "", **_: Any) -> int | None:
        return isolate(load, agent=agent)

    with (
        patch.object(LoadContext, "isolate", unhashed),
        patch.object(LoadContext, "digests_wanted", False),
        patch("repoagent.loader.load_context.KeptDigests", lambda _: KeptDigests(lambda _: False)),
    ):
        yield


def peers(scratch: Path, model: Protected) -> tuple[float, ...]:
    """What does the same by hand, without the signature; only seconds are known of it."""
    out = scratch / "opened"
    opens = ["age", "-d", "-i", model.identity, "-o", out, model.file]
    started, computing = time.perf_counter(), os.times()
    for command in (["openssl", "dgst", "-sha256", model.file], opens, ["openssl", "dgst", "-sha256", out]):
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    seconds, computed = time.perf_counter() - started, spent(computing)
    out.unlink()
    return seconds, computed


def spent(since: os.times_result) -> float:
    """Seconds of all processors, of this process and of its ended children."""
    return sum(os.times()[:4]) - sum(since[:4])


def receipts() -> Attesting:
    """Signs with a new key, with digests of the plaintext, and writes no file."""
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(serialization.Encoding.PEM, form, none)
    attestor = DsseAttestor(AttestorOptions(key=key, verifier="urn:benchmark"))
    return Attesting(attestor, AttestSettings(key="", plaintext=True), AgentRegistry(None), lambda _model: {})


def io_bytes() -> tuple[int, int]:
    """What this process and its ended children have read and written, from the page cache or not."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


if __name__ == "__main__":
    sys.exit(main())
