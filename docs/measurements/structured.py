"""What structured output costs: the vocabulary read once, a grammar compiled once, a mask for each token.

    python docs/measurements/structured.py

On the vocabularies of smollm2-135m and gemma3-270m, without their models. Masks are timed along random answers, which draw
each token evenly from those that are allowed: harder than what a model says. Prints a table in Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from statistics import median
from time import perf_counter

import torch

from engine import Choice, Grammar, JsonObject, JsonSchema, Regex, Tokenizer
from engine.generate.guide import Grammars
from engine.generate.structured import Structure
from engine.models import resolve

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "born", "tags", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["street"],
            "additionalProperties": False,
        }
    },
}
STRUCTURES: dict[str, Structure] = {
    "schema of a record": JsonSchema(RECORD),
    "any JSON object": JsonObject(),
    "a pattern, `[A-Z][a-z]+, \\d{4}`": Regex(r"[A-Z][a-z]+, \d{4}"),
    "1,000 choices": Choice([f"option {i} of a thousand" for i in range(1000)]),
    "a grammar of sums": Grammar(
        'start: term (("+" | "-") term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,9}/\n'
    ),
}
TOKENS = 300  # of masks that are timed for each


def main() -> None:
    torch.set_num_threads(1)
    print(
        "| vocabulary | structure | compiled, ms | mask, median ms | 95 of 100 | worst | pushed |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in ("smollm2-135m", "gemma3-270m"):
        tokenizer = Tokenizer.load(resolve(name))
        begin = perf_counter()
        grammars = Grammars(tokenizer, tokenizer.vocab_size)
        read = perf_counter() - begin
        for of, structure in STRUCTURES.items():
            begin = perf_counter()
            grammars.guide(structure, set())
            compiled = perf_counter() - begin
            masks, pushed = timed(grammars, structure, set(tokenizer.eos_ids))
            masks.sort()
            print(
                f"| {name}: {tokenizer.vocab_size:,} | {of} | {1e3 * compiled:.1f} "
                f"| {1e3 * median(masks):.2f} | {1e3 * masks[len(masks) * 95 // 100]:.2f} "
                f"| {1e3 * masks[-1]:.2f} | {1e3 * median(pushed):.3f} |"
            )
        print(f"| {name} | the vocabulary, once: {read:.2f} s | | | | | |")


def timed(
    grammars: Grammars, structure: Structure, ends: set[int]
) -> tuple[list[float], list[float]]:
    """Seconds of masks, and of pushes, along random answers one after another."""
    rng, masks, pushed = torch.Generator().manual_seed(0), [], []
    while len(masks) < TOKENS:
        guide = grammars.guide(structure, ends)
        while not guide.done and len(masks) < TOKENS:
            begin = perf_counter()
            mask = guide.mask()
            masks.append(perf_counter() - begin)
            allowed = mask.nonzero().flatten()
            token = int(allowed[torch.randint(len(allowed), (), generator=rng)])
            if token in ends:
                break
            begin = perf_counter()
            guide.push(token)
            pushed.append(perf_counter() - begin)
    return masks, pushed


if __name__ == "__main__":
    main()
