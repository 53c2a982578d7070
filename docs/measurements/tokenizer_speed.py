"""The tokenizer's speed against the tokenizers library and tiktoken: one thread, taken in turn, medians.

    RAYON_NUM_THREADS=1 python docs/measurements/tokenizer_speed.py [NAME...] [--json] [--rounds 5]

NAME is a tokenizer that `lockstep fetch` knows; without one, six of them are measured. Cold is a
tokenizer that has seen no word yet, warm one that has just seen the same text. The library keeps its
own cache of words between calls. tiktoken stands beside the vocabularies that it can be given.
Seconds are those of the processor, so that whoever else is computing counts for little.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Before the library is imported, which reads it once.
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tiktoken
from tokenizers import Tokenizer as Library

from engine.models import fetch
from engine.tokenizer import Tokenizer
from engine.tokenizer.alphabet import bytes_of

NAMES = (
    "tokenizer-llama3",
    "tokenizer-qwen3",
    "tokenizer-gptoss",
    "tokenizer-deepseek_v3",
    "tokenizer-llama2",
    "tokenizer-gemma3",
)
Work = Callable[[], Any]
SIZE = 300_000  # characters of a text
RUN = 100_000  # characters of a run without a point to split at


def texts(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what is measured, by name. The Chinese is drawn from the vocabulary's own words."""
    draw = random.Random(0)  # noqa: S311 (a text, not a secret)
    library = Path(sysconfig.get_path("stdlib"))
    code = "".join(file.read_text("utf-8") for file in sorted(library.glob("asyncio/*.py")))
    words = [
        word
        for token_id in range(tokenizer.vocab_size)
        if (word := tokenizer.decode([token_id])) and all("一" <= c <= "鿿" for c in word)
    ]
    chinese = "".join(
        "，" if draw.random() < 0.1 else words[int(len(words) * draw.random() ** 2)]
        for _ in range(SIZE // 3)
    )
    letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=RUN))
    return {
        "English": "\n\n".join(pydoc_data.topics.topics.values())[:SIZE],
        "code": code[:SIZE],
        "Chinese": chinese[:SIZE],
        "one letter": "a" * RUN,
        "random letters": letters,
        "digits": "".join(draw.choices("0123456789", k=RUN)),
    }


def tiktoken_of(folder: Path) -> tiktoken.Encoding | None:
    """Return the same tokenizer as tiktoken has it: byte-level, one pattern, nothing normalised."""
    file = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    match file:
        case {
            "normalizer": None,
            "pre_tokenizer": {"pretokenizers": [{"pattern": {"Regex": pattern}}, _]},
            "model": {"vocab": vocab, "ignore_merges": True},
        }:
            ranks = {bytes_of(token): token_id for token, token_id in vocab.items()}
            return tiktoken.Encoding(
                folder.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
            )
    return None


def in_turn(contestants: Mapping[str, Callable[[], Work]], rounds: int) -> dict[str, float]:
    """Return the median processor seconds of each, taken in turn.

    A contestant prepares, which takes no time, and returns what is to be measured.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, prepare in contestants.items():
            work = prepare()
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def _same(work: Work) -> Work:
    """Prepare nothing."""
    return work


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Return megabytes of UTF-8 per second by text and contestant, and the seconds of loading."""
    folder = fetch(name, progress=True)
    file = str(folder / "tokenizer.json")
    loaders: dict[str, Work] = {
        "ours": partial(Tokenizer.load, folder),
        "library": partial(Library.from_file, file),
    }
    loading = in_turn({who: partial(_same, load) for who, load in loaders.items()}, 3)
    ours, library, other = Tokenizer.load(folder), Library.from_file(file), tiktoken_of(folder)

    speed: dict[str, dict[str, float]] = {}
    for kind, text in texts(ours).items():
        size = len(text.encode()) / 1e6
        ids = ours.encode(text)
        if ids != library.encode(text).ids:
            raise SystemExit(f"{name} differs from the library on {kind}: no time is worth taking")
        contestants: dict[str, Callable[[], Work]] = {
            "cold": lambda text=text: partial(Tokenizer.load(folder).encode, text),
            "warm": partial(_same, partial(ours.encode, text)),
            "library": partial(_same, partial(library.encode, text)),
            "decode": partial(_same, partial(ours.decode, ids)),
            "library decode": partial(_same, partial(library.decode, ids)),
        }
        if other is not None:
            contestants["tiktoken"] = partial(_same, partial(other.encode_ordinary, text))
        times = in_turn(contestants, rounds)
        speed[kind] = {who: size / taken for who, taken in times.items()}
    return {"name": name, "loading": loading, "speed": speed}


def table(result: dict[str, Any]) -> str:
    """Return one tokenizer's figures as a table in Markdown; the ratios are to the library."""
    loading = result["loading"]
    lines = [
        f"\n{result['name']}: loads in {loading['ours']:.2f} s, the library in {loading['library']:.2f} s\n",
        "| MB/s | library | cold | warm | tiktoken | library decodes | decode |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, by in result["speed"].items():
        base, back = by["library"], by["library decode"]

        def ratio(who: str, to: float, by: Mapping[str, float] = by) -> str:
            return f"{by[who]:.1f} ({by[who] / to:.1f}x)" if who in by else ""

        cells = (ratio("cold", base), ratio("warm", base), ratio("tiktoken", base))
        lines.append(
            f"| {kind} | {base:.1f} | {' | '.join(cells)} | {back:.1f} | {ratio('decode', back)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results = [measured(name, asked.rounds) for name in asked.names]
    sys.stdout.write(
        json.dumps(results, indent=1) if asked.json else "\n".join(map(table, results))
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
