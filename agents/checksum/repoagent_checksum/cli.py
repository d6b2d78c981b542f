"""``repoagent checksum write`` and ``verify``: the digest files that ``sha256sum -c`` and the agent read.

Exit status: 0 all as it should be, 1 the directory is not what the digest file states, or one of them cannot be used,
2 the command line is wrong, a package is missing, or the system does not let something be read or written.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from repoagent.api import InvalidArgumentError, RepoAgentError, UnsupportedError, replace_file
from repoagent_checksum.check import Kind, Observer, Tree, Verdict, check, digests_of, find_digest_files, scan_tree
from repoagent_checksum.checksum_options import Request, parse_parameters, trusted_entries
from repoagent_checksum.digest_file import ALGORITHMS, find_algorithm, format_digest_file
from repoagent_checksum.file_names import show

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_ALGORITHM = click.Choice([name.lower() for name in ALGORITHMS], case_sensitive=False)
_TITLES = {Kind.MISMATCH: "CHANGED", Kind.UNLISTED: "NOT LISTED", Kind.LINK: "LINK", Kind.EMPTY: "EMPTY DIRECTORY"}


@click.group()
def checksum() -> None:
    """Write and verify the digests of a model's files."""


@checksum.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--algorithm", type=_ALGORITHM, default="sha256", show_default=True, help="The digest of every file.")
@click.option(
    "-o",
    "--output",
    help="The digest file: a plain name lies in DIRECTORY, a path elsewhere.  [default: SHA256SUMS, B3SUMS, ...]",
)
@click.option("--tag", is_flag=True, help="Write the BSD form, which names the algorithm in every line.")
def write(directory: Path, algorithm: str, output: str | None, tag: bool) -> None:
    """Write the digest file of DIRECTORY.

    It covers all that is in DIRECTORY. The agent and `sha256sum -c` read it. With a path as `--output`, such as
    /etc/repoagent/NAME.SHA256SUMS, it is a trust root for the operator's policy, outside of the model.
    """
    chosen = find_algorithm(algorithm)
    target = _target(directory, output or chosen.sums)
    with _exit_codes():
        files = _describable(scan_tree(directory), _own_name(directory, target))
        with _progress_bar() as observer:
            digests = digests_of(directory, {path: [chosen] for path in files}, observer)
        found = {path: digests[path][chosen.key] for path in files}
        replace_file(target, format_digest_file(found, chosen, tagged=tag))
    click.echo(f"{output or chosen.sums}: {_count(len(files))}, {sum(files.values())} bytes")


@checksum.command()
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--manifest",
    multiple=True,
    help="A digest file in DIRECTORY; repeat for more.  [default: all with a standard name]",
)
@click.option(
    "--trusted-manifest",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A digest file outside of DIRECTORY, such as a trust root of the policy; repeat for more.",
)
@click.option("--algorithm", type=_ALGORITHM, help="The algorithm of lines that name none.")
@click.option("--ignore", multiple=True, help="A file or empty directory that need not be listed; repeat for more.")
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
def verify(
    directory: Path,
    manifest: tuple[str, ...],
    trusted_manifest: tuple[Path, ...],
    algorithm: str | None,
    ignore: tuple[str, ...],
    quiet: bool,
) -> None:
    """Compare DIRECTORY with its digest file.

    The agent does the same when it loads the model.
    """
    with _exit_codes():
        roots = {str(path): path for path in trusted_manifest}
        request = _request(directory, manifest, tuple(roots), algorithm, ignore)
        with _progress_bar() as observer:
            verdict = check(directory, request, trusted=trusted_entries(request, roots), observer=observer)
    _print_verdict(verdict, request, quiet=quiet)
    sys.exit(1 if verdict.findings else 0)


def _target(directory: Path, output: str) -> Path:
    return directory / output if Path(output).name == output else Path(output)


def _own_name(directory: Path, target: Path) -> str:
    """The name of the digest file in ``directory``, which does not list itself; "" if it lies elsewhere.

    Raises:
        UnsupportedError: it would lie in a directory of the model, and cover that only.
    """
    found, root = target.parent.resolve(), directory.resolve()
    if found == root:
        return target.name
    if found.is_relative_to(root):
        raise UnsupportedError(
            f"--output {target} lies in a directory of the model; give a plain name, or a path outside"
        )
    return ""


def _request(
    directory: Path,
    manifest: tuple[str, ...],
    trusted: tuple[str, ...],
    algorithm: str | None,
    ignore: tuple[str, ...],
) -> Request:
    manifests = manifest or (() if trusted else find_digest_files(directory))
    if not manifests and not trusted:
        raise InvalidArgumentError(
            f"no digest file in {directory}; make one with: repoagent checksum write {directory}"
        )
    pairs = [("manifest", name) for name in manifests] + [("ignore", name) for name in ignore]
    pairs += [("trusted_manifest", name) for name in trusted]
    return parse_parameters([*pairs, *([("algorithm", algorithm)] if algorithm else [])])


def _print_verdict(verdict: Verdict, request: Request, *, quiet: bool) -> None:
    for finding in verdict.findings:
        title = _TITLES.get(finding.kind, finding.kind.name)
        click.echo(f"{show(finding.path)}: {title}{f' ({finding.detail})' if finding.detail else ''}")
    names = ", ".join([*request.trusted, *request.manifests])
    if verdict.findings:
        click.echo(f"{names}: {len(verdict.findings)} found wrong, the agent would refuse this model", err=True)
    elif not quiet:
        click.echo(f"{names}: {_count(verdict.files)}, {verdict.bytes_read} bytes: OK, tree {verdict.tree_digest}")


def _describable(tree: Tree, manifest: str) -> dict[str, int]:
    """The files to list, with their sizes.

    Raises:
        InvalidArgumentError: there is something that a digest file cannot describe.
    """
    for paths, kind in ((tree.links, Kind.LINK), (tree.special, Kind.SPECIAL)):
        if paths:
            raise InvalidArgumentError(f"{show(paths[0])} is {kind.value}; a digest file cannot describe that")
    for path in tree.empty:
        click.echo(f"warning: {show(path)} is {Kind.EMPTY.value}: verifying needs 'ignore' for it", err=True)
    return {path: size for path, size in tree.files.items() if path != manifest}


@contextmanager
def _progress_bar() -> Iterator[Observer]:
    """An observer that draws a bar on stderr if a person is looking."""
    if not sys.stderr.isatty():
        yield Observer()
        return
    with click.progressbar(length=1, file=sys.stderr, label="checksum") as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield Observer(progress=progress)


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", 2)
    except UnsupportedError as error:
        _fail(error.message, 2)
    except RepoAgentError as error:
        _fail(error.message, 1)


def _fail(message: str, status: int) -> NoReturn:
    click.echo(f"repoagent checksum: {message}", err=True)
    sys.exit(status)


def _count(files: int) -> str:
    return f"{files} file{'' if files == 1 else 's'}"
