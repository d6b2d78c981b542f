"""``python -m repoagent_capi --cflags --libs``: what a compiler needs for a C program over this installation."""

import argparse
import sys

from repoagent_capi import INCLUDE, LIBRARY


def main() -> None:
    """Print the flags that are asked for on one line."""
    parser = argparse.ArgumentParser(prog="python -m repoagent_capi")
    parser.add_argument("--cflags", action="store_true", help="flags to compile")
    parser.add_argument("--libs", action="store_true", help="flags to link")
    options = parser.parse_args()
    if not (options.cflags or options.libs):
        parser.error("name what to print: --cflags, --libs, or both")
    flags = [f"-I{INCLUDE}"] if options.cflags else []
    if options.libs:
        flags += [f"-L{LIBRARY.parent}", f"-Wl,-rpath,{LIBRARY.parent}", "-ltritonserver", "-lpthread"]
    sys.stdout.write(" ".join(flags) + "\n")


if __name__ == "__main__":
    main()
