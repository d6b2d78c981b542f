"""Converters for tests: small ones that work, and ones that go wrong in every way."""

import ctypes
import importlib.util
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repoagent.api import (
    ConversionJob,
    ConversionPlan,
    ConversionSource,
    ConverterOption,
    InvalidArgumentError,
    Product,
    UnavailableError,
)

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

HERE = __name__


class Upper:
    """Text to capitals; the option ``then`` is what to do instead or besides."""

    in_child = True
    version = "1"
    options = {
        "then": ConverterOption("", "what goes wrong, and how"),
        "mark": ConverterOption(None, "a directory in which each build leaves a file"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        return ConversionPlan(
            (source.name,),
            "model.upper",
            {"input": source.name, **options},
            {"shouter": os.environ.get("SHOUTER", "7")},
            replaces=(source.name,),
        )

    def build(self, job: ConversionJob) -> Product:
        options, target = job.settings, job.target
        if "mark" in options:
            Path(options["mark"], str(os.getpid())).write_text(
                json.dumps({name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ})
            )
        (target / "half").write_text("half")
        job.progress(1, 4, "shouting")
        wrong = options["then"]
        if wrong:
            getattr(self, f"_{wrong}")(options)
        (target / "half").unlink()
        (target / "model.upper").write_text((job.source / options["input"]).read_text().upper())
        job.progress(4, 4, "shouting")
        return Product({"letters": 26}, ("all capitals",))

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        config.backend = "shouting"
        config.default_model_filename = plan.output

    def _refuse(self, options: Mapping[str, Any]) -> None:
        raise InvalidArgumentError("there are no letters")

    def _unavailable(self, options: Mapping[str, Any]) -> None:
        raise UnavailableError("the device is busy")

    def _raise(self, options: Mapping[str, Any]) -> None:
        raise ValueError("surprised")

    def _memory(self, options: Mapping[str, Any]) -> None:
        raise MemoryError

    def _abort(self, options: Mapping[str, Any]) -> None:
        print("the last words", file=sys.stderr, flush=True)
        os.abort()

    def _kill(self, options: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self, options: Mapping[str, Any]) -> None:
        os._exit(3)

    def _chatter(self, options: Mapping[str, Any]) -> None:
        for _ in range(1000):
            print("x" * 1000, flush=True)

    def _hang(self, options: Mapping[str, Any]) -> None:
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(options["mark"], "helper").write_text(str(helper.pid))
        time.sleep(600)

    def _linger(self, options: Mapping[str, Any]) -> None:
        """Leave a process behind that holds the pipes open."""
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(options["mark"], "helper").write_text(str(helper.pid))

    def _environment(self, options: Mapping[str, Any]) -> None:
        Path(options["mark"], "environment").write_text(json.dumps(sorted(os.environ)))

    def _forge(self, options: Mapping[str, Any]) -> None:
        """What code that a hostile model has taken over could write."""
        os.write(int(sys.argv[1]), json.dumps({"progress": [2, 2, "a\nline" * 9999]}).encode() + b"\n")

    def _inject(self, options: Mapping[str, Any]) -> None:
        raise InvalidArgumentError("a name\nINFO of the \x1b[31mmodel")

    def _garbage(self, options: Mapping[str, Any]) -> None:
        os.write(int(sys.argv[1]), b"\xff not json\n")

    def _flood(self, options: Mapping[str, Any]) -> None:
        os.write(int(sys.argv[1]), b"x" * 1000)
        while True:
            os.write(int(sys.argv[1]), b"x" * (1 << 20))

    def _shield(self, options: Mapping[str, Any]) -> None:
        dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
        limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
        Path(options["mark"], "shield").write_text(json.dumps({"dumpable": dumpable, "limit": limit}))

    def _sleep(self, options: Mapping[str, Any]) -> None:
        time.sleep(600)

    def _wait(self, options: Mapping[str, Any]) -> None:
        """For an event that never comes."""
        threading.Event().wait()

    def _babble(self, options: Mapping[str, Any]) -> None:
        """Report and print without end, so that the server always has something to read."""
        while True:
            print("still at it", flush=True)
            os.write(int(sys.argv[1]), json.dumps({"progress": [2, 4, "shouting"]}).encode() + b"\n")


class Here(Upper):
    """The same in the server's own process."""

    in_child = False


class Nothing(Upper):
    """Makes something, but not what it said."""

    def build(self, job: ConversionJob) -> Product:
        (job.target / "other").write_text("")
        return Product()


class Linking(Upper):
    """Leaves a link to a file of the server."""

    def build(self, job: ConversionJob) -> Product:
        (job.target / "model.upper").symlink_to("/etc/hostname")
        return Product()


class Piping(Upper):
    """Leaves a pipe that nobody writes to."""

    def build(self, job: ConversionJob) -> Product:
        os.mkfifo(job.target / "model.upper")
        return Product()


class Leaving(Upper):
    """Leaves what no result should have; the option ``then`` is what."""

    def build(self, job: ConversionJob) -> Product:
        (job.target / "model.upper").write_text("ABC")
        getattr(self, f"_{job.settings['then']}")(job.target, job.settings)
        return Product()

    def _hard_link(self, target: Path, options: Mapping[str, Any]) -> None:
        (target / "model.upper").unlink()
        (target / "model.upper").hardlink_to(options["mark"])

    def _two_names(self, target: Path, options: Mapping[str, Any]) -> None:
        (target / "copy").hardlink_to(target / "model.upper")

    def _sparse(self, target: Path, options: Mapping[str, Any]) -> None:
        os.truncate(target / "model.upper", 1 << 42)

    def _deep(self, target: Path, options: Mapping[str, Any]) -> None:
        os.chdir(target)
        for _ in range(1500):
            os.mkdir("down")
            os.chdir("down")
        Path("file").write_text("far away")

    def _odd_name(self, target: Path, options: Mapping[str, Any]) -> None:
        Path(os.fsdecode(os.fsencode(target) + b"/\xff\n\x1b[31m")).write_text("odd")

    def _gigabyte(self, target: Path, options: Mapping[str, Any]) -> None:
        line = b"x" * (1 << 20)
        for _ in range(1 << 10):
            os.write(1, line)

    def _odd_error(self, target: Path, options: Mapping[str, Any]) -> None:
        class Odd(BaseException):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Odd

    def _surrogates(self, target: Path, options: Mapping[str, Any]) -> None:
        raise ValueError("\udcff\ud800 \u202e")

    def _system_exit(self, target: Path, options: Mapping[str, Any]) -> None:
        sys.exit("enough")


class Outside(Upper):
    """Names an input that is not the model's."""

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        return ConversionPlan(("../../../etc/hostname",), "model.upper", {})


class Unfit(Upper):
    """A plan that cannot be a key."""

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        return ConversionPlan((source.name,), "model.upper", {"what": object()})


class Pickled(Upper):
    """Opens a pickle, and writes down what came out of it."""

    runs_code = True

    def build(self, job: ConversionJob) -> Product:
        opened = pickle.loads((job.source / job.settings["input"]).read_bytes())
        (job.target / "model.upper").write_text(str(opened))
        return Product({"letters": 26}, ("opened",))


class Lacking(Pickled):
    """It needs a package as well, and there is another way."""

    packages = ("shouter",)
    instead = "or shout where the text is written"


class Unjailed(Pickled):
    """The same without a jail: what a pickle can do then."""

    runs_code = False


class Foreign(Upper):
    """Reports what it sees of the world; it needs a package."""

    packages = ("shouter",)
    libraries = ("whisperer",)

    def build(self, job: ConversionJob) -> Product:
        seen = {"prefix": sys.prefix, "path": sys.path, "numpy": importlib.util.find_spec("numpy") is not None}
        (job.target / "model.upper").write_text(json.dumps(seen))
        return Product()


class Reaching(Foreign):
    """In a jail, it imports what lies elsewhere in its package; nothing else of the server's is there."""

    jailed = True

    def build(self, job: ConversionJob) -> Product:
        from tests import extent

        (job.target / "model.upper").write_text(str(extent.IN_FULL))
        return Product()


class Half:
    """Not a converter."""

    version = "1"


CONVERTERS = {
    ("text", name): f"{HERE}:{kind}"
    for name, kind in {
        "upper": "Upper",
        "here": "Here",
        "nothing": "Nothing",
        "linking": "Linking",
        "piping": "Piping",
        "leaving": "Leaving",
        "outside": "Outside",
        "unfit": "Unfit",
        "half": "Half",
        "pickled": "Pickled",
        "lacking": "Lacking",
        "unjailed": "Unjailed",
        "foreign": "Foreign",
        "missing": "Missing",
        "reaching": "Reaching",
    }.items()
}
