"""Requests per second with and without --request-log, in turns in one run.

    python benchmarks/request_log.py [--seconds 3] [--rounds 5] [--connections 8]

Two servers run the same small identity model, one of them with a request log in a temporary directory. They are loaded
in turns over HTTP and over gRPC. Printed are the medians of the rates, the median of the rounds' ratios, and how many
requests got no line.
"""

import re
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from loads import SIXTEEN, rate
from measures import in_turns, medians, options_of, ratio
from servers import Server, repoagent, write_model


def main() -> None:
    options = options_of(__doc__, seconds=(3, "of one measurement"), rounds=5, connections=8)
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch, "requests.log")
        write_model(folder / "models")
        with (
            repoagent("off", folder, ["--log-info=false"]) as off,
            repoagent("on", folder, ["--log-info=false", f"--request-log={log}"]) as on,
        ):
            for form in ("json", "grpc"):
                addresses = {one.name: ("127.0.0.1", one.grpc if form == "grpc" else one.http) for one in (off, on)}
                takes = {
                    name: partial(
                        rate, form, "identity", {"INPUT0": SIXTEEN}, address, options.connections, options.seconds
                    )
                    for name, address in addresses.items()
                }
                rates = in_turns(takes, options.rounds, warm=1)
                found, of = medians(rates), ratio(rates, "on", "off")
                print(f"{form}: off {found['off']:,.0f}/s, on {found['on']:,.0f}/s, ratio {of:.3f}")
            time.sleep(1)
            lines, size = len(log.read_bytes().splitlines()), log.stat().st_size
            print(f"lines {lines:,}, dropped {dropped(on):,}, {size:,} bytes")


def dropped(server: Server) -> int:
    """How many requests have no line."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics") as page:
        found = re.search(r"repoagent_request_log_dropped_total (\d+)", page.read().decode())
    return int(found[1]) if found is not None else 0


if __name__ == "__main__":
    main()
