"""A picture of batching in flight: what each request did in each iteration, as an SVG file.

    python timeline.py [FOLDER] > timeline.svg

A row is a request, a column an iteration. Four requests run at most; the others wait until one is done. Prompts are
read in pieces beside the tokens of those that generate, so nobody stops for a newcomer.
"""

from collections.abc import Iterator, Sequence

from example_model import open_executor
from repoagent_llm import ExecutorConfig, Request, RequestStats, RequestStatsPerIteration

LENGTHS = [(12, 14), (30, 9), (6, 20), (52, 10), (8, 6), (40, 12), (10, 8), (20, 5)]
"""Tokens of the prompt and new tokens, for each request."""
COLORS = {"waits": "#d9dde3", "reads its prompt": "#e8963a", "generates": "#3d7ab8"}
CELL, LEFT, TOP = 14, 100, 44


def main() -> None:
    """Send all requests at once, wait for the answers, draw what happened meanwhile."""
    config = ExecutorConfig(
        max_batch_size=4, max_num_tokens=20, enable_chunked_context=True, request_stats_max_iterations=1000
    )
    requests = [
        Request([1 + (index + place) % 90 for place in range(prompt)], new)
        for index, (prompt, new) in enumerate(LENGTHS)
    ]
    with open_executor(config) as executor:
        executor.await_responses(executor.enqueue_requests(requests))
        stats = executor.get_latest_request_stats()
    print("\n".join(picture(stats)))


def picture(stats: Sequence[RequestStatsPerIteration]) -> Iterator[str]:
    """The lines of the SVG."""
    requests = sorted({item.id for one in stats for item in one.request_stats})
    width, height = LEFT + CELL * len(stats) + 10, TOP + CELL * len(requests) + 10
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for place, (name, color) in enumerate(COLORS.items()):
        yield f'<rect x="{LEFT + 130 * place}" y="10" width="12" height="12" fill="{color}"/>'
        yield f'<text x="{LEFT + 130 * place + 17}" y="20" font-size="11">{name}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 6}" font-size="10" fill="#555555">iterations</text>'
    for row, number in enumerate(requests):
        yield f'<text x="10" y="{TOP + CELL * row + 11}" font-size="11">request {number}</text>'
    for column, one in enumerate(stats):
        for item in one.request_stats:
            x, y = LEFT + CELL * column, TOP + CELL * requests.index(item.id)
            color = COLORS[doing(item)]
            yield f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="{color}"/>'
    yield "</svg>"


def doing(stats: RequestStats) -> str:
    """In the words of the picture. The prompt's last piece gives the first token."""
    if not stats.scheduled:
        return "waits"
    return "reads its prompt" if stats.num_generated_tokens <= 1 else "generates"


if __name__ == "__main__":
    main()
