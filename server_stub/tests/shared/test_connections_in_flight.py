"""Counting what is being answered."""

import asyncio

from repoagent_server.shared.connections import InFlight


def test_idle_is_when_all_that_started_has_finished() -> None:
    async def run() -> list[bool]:
        in_flight = InFlight()
        seen = [await in_flight.idle(0)]
        in_flight.started()
        in_flight.started()
        in_flight.finished()
        seen.append(await in_flight.idle(0.01))
        waiting = asyncio.ensure_future(in_flight.idle(60))
        await asyncio.sleep(0)
        in_flight.finished()
        return [*seen, await waiting]

    assert asyncio.run(run()) == [True, False, True]
