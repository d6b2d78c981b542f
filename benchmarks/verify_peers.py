"""``repoagent sign`` and ``verify`` beside the reference tool, model-signing: both ways, and how fast.

    python benchmarks/verify_peers.py --peer .venvs/model-signing/bin/model_signing
    python benchmarks/verify_peers.py --size 64M      # a quick look

First each verifies what the other signed, with keys on three curves and with a chain of certificates, and refuses it
after a change. What the reference tool signs without a key, at a Sigstore of this script, is verified by both.

Then both verify the same model in turns: one file of ``--size``, and 200 files of that size together. Beside them
stand ours over ranges of 64 MiB, which lets one file use every core, and what SHA-256 alone takes for these files with
a thread per core. Programs take a while to start, and a server does not: "inside" is what a process that runs already
takes, for ranges. The seconds of the processor, of both cores together, move less with the machine. A peer that is not
installed prints MISSING and makes the exit status 1.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import measures
from cryptography.hazmat.primitives.asymmetric import ec
from measures import columns, fill, in_turns, options_of, size_of, table
from servers import report_missing

from agents.verify.tests.issuing import issue, key_pem, public_pem
from agents.verify.tests.private_sigstore import IDENTITY, ISSUER, PrivateSigstore
from agents.verify.tests.sigstore_servers import SigstoreServers, token

CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
OURS = Path(sys.executable).with_name("repoagent")
RANGE = 64 << 20
INSIDE = """
import json, sys, time
from pathlib import Path
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, verify
root, signature, key = map(Path, sys.argv[1:])
trust, bundle = read_trust([("key", key.read_bytes())]), signature.read_bytes()
begin, used = time.perf_counter(), time.process_time()
verify(root, bundle, trust, Coverage(""))
print(json.dumps([time.perf_counter() - begin, time.process_time() - used]))
"""


@dataclass(frozen=True, slots=True)
class Method:
    """How to sign and verify: the options of both tools."""

    name: str
    sign_ours: list[str]
    sign_theirs: list[str]
    verify_ours: list[str]
    verify_theirs: list[str]


def main() -> int:
    options = options_of(
        __doc__,
        peer=("model_signing", "the reference tool, if it is not on the path"),
        size=("2G", "bytes of the model whose verification is timed"),
        rounds=3,
    )
    peer = shutil.which(options.peer)
    if peer is None:
        return report_missing({"model-signing": "make bench-peers installs it"})
    with tempfile.TemporaryDirectory() as scratch:
        faults = interoperate(peer, Path(scratch)) + keyless(peer, Path(scratch))
        for files in (1, 200):
            compare_speed(peer, Path(scratch), size_of(options.size), files, options.rounds)
    return 1 if faults else 0


def interoperate(peer: str, scratch: Path) -> int:
    """Both ways with every method; prints what each said and returns the number of wrong answers."""
    model = scratch / "small"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text("max_batch_size: 1")
    weights = model / "1" / "model.onnx"
    wrong = 0
    for method in methods(scratch):
        for signer in ("ours", "theirs"):
            weights.write_bytes(b"weights" * 1000)
            bundle = scratch / f"{method.name}-{signer}.sig"
            signed = run(sign_command(peer, signer, method, model, bundle))
            verifier = "theirs" if signer == "ours" else "ours"
            held = signed and run(verify_command(peer, verifier, method, model, bundle))
            weights.write_bytes(b"changed")
            refused = not run(verify_command(peer, verifier, method, model, bundle))
            wrong += not (held and refused)
            print(f"{method.name:<12} signed by {signer:<7} holds: {held}, refused after a change: {refused}")
    return wrong


def keyless(peer: str, scratch: Path) -> int:
    """What the reference tool signs with a token of CI; returns the number of wrong answers."""
    model, bundle = scratch / "small", scratch / "keyless.sig"
    trust, root = scratch / "trust_config.json", scratch / "trusted_root.json"
    (model / "1" / "model.onnx").write_bytes(b"weights" * 1000)
    sigstore = PrivateSigstore()
    root.write_bytes(sigstore.trusted_root())
    with SigstoreServers(sigstore) as servers:
        trust.write_text(servers.trust_config())
        given = ["--identity_token", token(IDENTITY.removeprefix("https://github.com/"), ISSUER)]
        signed = run([peer, "sign", "sigstore", "--trust_config", trust, *given, "--signature", bundle, model])
    ours = [str(OURS), "verify", str(model), "--sigstore-root", str(root), "--signature", str(bundle)]
    theirs = [peer, "verify", "sigstore", "--trust_config", str(trust), "--signature", str(bundle), str(model)]
    held = signed and run([*ours, "--identity", IDENTITY, "--issuer", ISSUER])
    also = run([*theirs, "--identity", IDENTITY, "--identity_provider", ISSUER])
    refused = not run([*ours, "--identity", IDENTITY, "--issuer", "https://other.example"])
    (model / "1" / "model.onnx").write_bytes(b"changed")
    changed = not run([*ours, "--identity", IDENTITY, "--issuer", ISSUER])
    print(
        f"keyless      signed by theirs  holds: {held}, also for theirs: {also}, "
        f"refused for another issuer: {refused}, refused after a change: {changed}"
    )
    return 4 - sum((held, also, refused, changed))


def sign_command(peer: str, tool: str, method: Method, model: Path, bundle: Path) -> list[str]:
    if tool == "ours":
        return [str(OURS), "sign", str(model), *method.sign_ours, "--signature", str(bundle), "--force"]
    return [peer, "sign", *method.sign_theirs, str(model), "--signature", str(bundle)]


def verify_command(peer: str, tool: str, method: Method, model: Path, bundle: Path) -> list[str]:
    if tool == "ours":
        return [str(OURS), "verify", str(model), *method.verify_ours, "--signature", str(bundle)]
    return [peer, "verify", *method.verify_theirs, str(model), "--signature", str(bundle)]


def run(command: Sequence[str | Path]) -> bool:
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0


def methods(scratch: Path) -> list[Method]:
    found = []
    for name, curve in CURVES.items():
        private, public = write_key(ec.generate_private_key(curve), scratch / name)
        key, trusted = ["--private_key", private], ["--public_key", public]
        found.append(Method(name, ["--key", private], ["key", *key], ["--public-key", public], ["key", *trusted]))
    return [*found, certificate_method(scratch)]


def write_key(key: ec.EllipticCurvePrivateKey, place: Path) -> tuple[str, str]:
    """The files of both halves."""
    private, public = place.with_suffix(".key"), place.with_suffix(".pub")
    private.write_bytes(key_pem(key))
    public.write_bytes(public_pem(key))
    return str(private), str(public)


def certificate_method(scratch: Path) -> Method:
    authority = issue("root", authority=True)
    signer = issue("leaf", authority)
    root, leaf = scratch / "root.pem", scratch / "leaf.pem"
    root.write_bytes(authority.pem)
    leaf.write_bytes(signer.pem)
    private, _ = write_key(signer.key, scratch / "leaf")
    chain = ["--certificate_chain", str(root)]
    return Method(
        "certificate",
        ["--key", private, "--certificate", str(leaf)],
        ["certificate", "--private_key", private, "--signing_certificate", str(leaf), *chain],
        ["--certificate", str(root)],
        ["certificate", *chain],
    )


def compare_speed(peer: str, scratch: Path, size: int, files: int, rounds: int) -> None:
    shutil.rmtree(scratch / "large", ignore_errors=True)
    model = fill(scratch / "large", size, files)
    method = methods(scratch)[0]
    whole, ranges = scratch / "large.sig", scratch / "ranges.sig"
    sign_ours = sign_command(peer, "ours", method, model, whole)
    in_ranges = [*sign_command(peer, "ours", method, model, ranges), "--shard-size", str(RANGE)]
    if not (run(sign_ours) and run(in_ranges)):
        raise SystemExit("the large model cannot be signed")
    commands = {
        "ours": verify_command(peer, "ours", method, model, whole),
        "ranges": verify_command(peer, "ours", method, model, ranges),
        "theirs": verify_command(peer, "theirs", method, model, whole),
    }
    inside = [sys.executable, "-c", INSIDE, str(model), str(ranges), method.verify_ours[-1]]

    def within() -> tuple[float, float]:
        wall, cpu = json.loads(measures.run(inside).stdout)
        return wall, cpu

    takes: dict[str, Callable[[], tuple[float, float]]] = {"digest": partial(digest_alone, model), "inside": within}
    takes |= {name: partial(timed, command) for name, command in commands.items()}
    print(f"{files} files of {size >> 20} MiB together")
    rows = []
    for name, values in in_turns(takes, rounds).items():
        wall, cpu = columns(values)
        rows.append((name, f"{size / wall / 1e9:.2f}", f"{wall:.2f}", f"{cpu:.2f}"))
    print(table(("", "GB/s", "seconds", "seconds of the processor"), rows))


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    cost = measures.run(command)
    return cost.seconds, cost.cpu


def digest_alone(model: Path) -> tuple[float, float]:
    """Seconds for SHA-256 over ranges of all files, with a thread per core and nothing else; those of the processor."""

    def digest(place: tuple[Path, int]) -> None:
        buffer = memoryview(bytearray(1 << 20))
        hasher, left = hashlib.sha256(), RANGE
        with place[0].open("rb", buffering=0) as stream:
            stream.seek(place[1])
            while left and (count := stream.readinto(buffer)):
                hasher.update(buffer[:count])
                left -= count

    places = [(path, start) for path in model.iterdir() for start in range(0, path.stat().st_size, RANGE)]
    begin, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(digest, places))
    return time.perf_counter() - begin, time.process_time() - used


if __name__ == "__main__":
    sys.exit(main())
