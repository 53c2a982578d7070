"""What of a server's memory grows: `python docs/measurements/serving_memory.py [--rounds 8] [--requests 600] [--trace]`.

The requests of serving_soak.py, in rounds, at a server in this process. After each round, when nobody is served:
how many more blocks Python's allocator has given out, and how many more bytes of malloc's are in use (mallinfo2 of
glibc, weights and caches of torch among them), are free but kept, and are resident. With --trace the places in the
code whose Python objects grew in the last round (tracemalloc, which takes memory of its own).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import psutil
from serving_soak import CLIENTS, ask

from engine import Engine
from tests.server.serving import Client, serving, speaking_folder, wait_until

SHOWN = 10  # places


class MallInfo2(ctypes.Structure):
    """What glibc's mallinfo2 gives (mallinfo(3))."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def state() -> list[int]:
    """Python's blocks, and bytes: in use by malloc, free in malloc, resident."""
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = MallInfo2
    for _ in range(3):
        gc.collect()
    now = mallinfo2()
    resident = psutil.Process().memory_info().rss
    return [sys.getallocatedblocks(), now.uordblks + now.hblkhd, now.fordblks, resident]


def ask_many(client: Client, rng: random.Random, requests: int) -> None:
    for _ in range(requests):
        ask(client, rng)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--trace", action="store_true")
    asked = parser.parse_args()
    os.environ["no_proxy"] = "*"
    if asked.trace:
        tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.load(speaking_folder(Path(folder) / "tiny"), cache="paged")
        with (
            serving(engine, max_queue=1000) as client,
            ThreadPoolExecutor(CLIENTS) as clients,
        ):
            client.timeout = 3600
            rngs = [random.Random(seed) for seed in range(CLIENTS)]  # noqa: S311
            each = asked.requests // CLIENTS
            before = state()
            snapshot = tracemalloc.take_snapshot() if asked.trace else None
            print("| round | Python's blocks | in use, KiB | free, KiB | resident, KiB |")
            print("|---|---|---|---|---|")
            for i in range(asked.rounds):
                for done in [clients.submit(ask_many, client, rng, each) for rng in rngs]:
                    done.result()
                wait_until(lambda: client.at_rest, "nobody is served")
                now = state()
                blocks, *sizes = (b - a for a, b in zip(before, now, strict=True))
                said = " | ".join(f"{size / 1024:+,.0f}" for size in sizes)
                print(f"| {i + 1} | {blocks:+,} | {said} |", flush=True)
                before = now
                if snapshot is not None:
                    last, snapshot = snapshot, tracemalloc.take_snapshot()
    if snapshot is not None:
        for place in snapshot.compare_to(last, "lineno")[:SHOWN]:
            print(place)


if __name__ == "__main__":
    main()
