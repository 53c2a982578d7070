"""A server's memory over minutes of every kind of request: `python docs/measurements/serving_soak.py [--minutes 10]`.

Eight clients ask a tiny random model without a pause: completions and chats, streamed and not, several answers,
held to a schema, refused, and left in the midst. It prints the server's resident memory minute by minute, how many
requests of each kind there were, and how much more the last minute holds than the third; the first two fill what is
bounded (the paged cache, the words that the tokenizer remembers, the allocator's reserves). Status 1 where that is
more than 2 %, where a request was not answered as it should be, or where not all blocks are free in the end.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil

from tests.server.process import served
from tests.server.serving import NAME, Client, speaking_folder, wait_until

CLIENTS = 8
ALLOWED = 0.02
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in "aeiou" for c in "klmnrst"]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}


def ask(client: Client, rng: random.Random) -> str:
    """One request of a kind that is drawn; the kind, or what went wrong."""
    text = " ".join(rng.choices(WORDS, k=rng.randrange(1, 80)))
    fields: dict[str, Any] = {
        "model": NAME,
        "max_tokens": rng.randrange(1, 60),
        "temperature": rng.choice([0, 0.8, 1.5]),
        "seed": rng.randrange(1000),
        "n": rng.choice([1, 1, 1, 3]),
    }
    completion = (COMPLETIONS, {**fields, "prompt": text})
    chat = (CHAT, {**fields, "messages": [{"role": "user", "content": text}]})
    path, request = rng.choice([completion, chat])
    kind = rng.choice(["whole", "streamed", "left", "refused", "schema", "logprobs"])
    match kind:
        case "whole":
            assert len(client.get(path, request)["choices"]) == fields["n"]
        case "streamed":
            assert client.chunks(path, request)
        case "left":
            events = client.events(path, {**request, "max_tokens": 400, "ignore_eos": True})
            for _ in range(rng.randrange(1, 20)):
                next(events)
            events.close()
        case "refused":
            assert client.ask(path, {**request, "temperature": -1}).status == 400
        case "schema":
            path, request = chat
            schema = {"name": "place", "schema": PLACE}
            form = {"type": "json_schema", "json_schema": schema}
            client.get(path, {**request, "max_tokens": 100, "response_format": form})
        case "logprobs":
            more = {"logprobs": 5} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 5}
            client.get(path, {**request, **more, "prompt_logprobs": 2})
    return kind


def busy(client: Client, seed: int, until: float) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()  # noqa: S311 - the same in every run
    while time.monotonic() < until:
        seen[ask(client, rng)] += 1
    return seen


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        model = speaking_folder(Path(folder) / "tiny")
        with (
            served(model, "--max-queue", "1000") as (process, client),
            ThreadPoolExecutor(CLIENTS) as clients,
        ):
            client.timeout = 3600  # of a machine that is busy with something else, too
            start = time.monotonic()
            until = start + 60 * minutes
            running = [clients.submit(busy, client, seed, until) for seed in range(CLIENTS)]
            memory = psutil.Process(process.pid)
            held: list[tuple[float, int]] = []
            while time.monotonic() < until:
                held.append(((time.monotonic() - start) / 60, memory.memory_info().rss))
                time.sleep(1)
            seen = sum((one.result() for one in running), Counter[str]())
            wait_until(lambda: client.at_rest, "nobody is served")
            left = client.metric("cache_blocks_total") - client.metric("cache_blocks_free")
    print(f"{seen.total():,} requests: {', '.join(f'{n:,} {kind}' for kind, n in seen.items())}")
    print("| minute | resident, MiB |\n|---|---|")
    medians = []
    for minute in range(int(minutes)):
        medians.append(statistics.median(rss for at, rss in held if minute <= at < minute + 1))
        print(f"| {minute + 1} | {medians[-1] / 2**20:,.1f} |")
    settled = medians[min(2, len(medians) - 1)]
    growth = medians[-1] / settled - 1
    print(
        f"the last minute holds {100 * growth:+.2f} % of the third; {left:.0f} blocks are not free"
    )
    return int(growth > ALLOWED or left > 0)


if __name__ == "__main__":
    sys.exit(main())
