"""What may change between two runs of a request, and must not change its logits: axes and their values.

A cell takes one value of each axis. Rules say which values cannot meet, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from engine.errors import RequestError

#: Tokens of a block in paged caches: a few, so that short prompts fill several.
BLOCK = 4

#: The first value of each axis is that of a naive run. Chunks are tokens of a prompt in one forward pass.
AXES: Mapping[str, tuple[str, ...]] = {
    "model": (
        "llama-bias",
        "mistral-window",
        "gemma2",
        "gemma3",
        "gpt2-inverse-layer",
        "gpt-oss",
        "deepseek-v3",
    ),
    "dtype": ("float32", "bfloat16"),
    "backend": ("eager", "sdpa", "tiled", "flash", "flex"),
    "mode": ("ordinary", "batch_invariant"),
    "compiled": ("no", "yes"),
    "cache": ("contiguous", "ring", "paged", "int8"),
    "chunk": ("whole", "1", "2", str(BLOCK), str(BLOCK + 1), "7"),
    "packing": ("own pass", "packed row", "padded batch"),
    "padding": ("none", "left", "right"),
    "batch": ("alone", "beside one", "beside seven"),
    "n": ("1", "3"),
    "prefix": ("cold", "warm", "partial"),
    "pre-empted": ("no", "once", "twice"),
    "history": ("fresh", "after another", "after an aborted"),
    "drafts": ("none", "right", "wrong"),
}

#: What takes seconds: compiling, for each shape or kind of a forward pass.
COSTLY = (("compiled", "yes"), ("backend", "flex"))

Pair = tuple[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class Cell:
    """One value of each axis, in their order."""

    values: tuple[str, ...]

    @classmethod
    def of(cls, **changes: str) -> Cell:
        """The naive run with some values changed; `pre_empted` stands for the axis of that name."""
        given = {axis.replace("_", "-"): value for axis, value in changes.items()}
        if unknown := set(given) - set(AXES):
            raise KeyError(f"no axis {', '.join(sorted(unknown))}")
        return cls(tuple(given.get(axis, values[0]) for axis, values in AXES.items()))

    def __getitem__(self, axis: str) -> str:
        return self.values[tuple(AXES).index(axis)]

    @property
    def pairs(self) -> Iterator[Pair]:
        """Any two of its values, with their axes."""
        return combinations(zip(AXES, self.values, strict=True), 2)

    def __str__(self) -> str:
        """The model, and what is not as in a naive run."""
        changed = [
            f"{axis} {value}"
            for axis, value in zip(AXES, self.values, strict=True)
            if axis != "model" and value != AXES[axis][0]
        ]
        return f"{self['model']}: {', '.join(changed) or 'the naive run'}"


@dataclass(frozen=True)
class Rule:
    """No cell has one of the values `these` of an axis and one of `those` of another."""

    reason: str
    these: tuple[str, tuple[str, ...]]
    those: tuple[str, tuple[str, ...]]

    def forbids(self, pair: Pair) -> bool:
        return any(
            pair[i][0] == self.these[0]
            and pair[i][1] in self.these[1]
            and pair[1 - i][0] == self.those[0]
            and pair[1 - i][1] in self.those[1]
            for i in (0, 1)
        )


def _but(axis: str, *values: str) -> tuple[str, tuple[str, ...]]:
    """All values of an axis but these."""
    return axis, tuple(value for value in AXES[axis] if value not in values)


def _only(axis: str, *values: str) -> tuple[str, tuple[str, ...]]:
    return axis, values


_COMPILED = _only("compiled", "yes")
_FEW_SHAPES = "each shape of a pass is compiled for seconds, so that compiled cells have few"
_FLEX = _only("backend", "flex")
_FEW_CALLS = "a call of flex takes hundredths of a second on a CPU, so that its cells have few"
_PADDED = _only("packing", "padded batch")

RULES: Sequence[Rule] = (
    Rule(
        "sdpa and flash have no softcap and no sinks",
        _only("backend", "sdpa", "flash"),
        _only("model", "gemma2", "gpt-oss"),
    ),
    Rule(
        "the batch-invariant mode has a kernel of its own",
        _only("mode", "batch_invariant"),
        _but("backend", "eager"),
    ),
    Rule("a padded batch is padded", _PADDED, _only("padding", "none")),
    Rule("nothing else is padded", _but("packing", "padded batch"), _but("padding", "none")),
    Rule("a single row needs no padding", _PADDED, _only("batch", "alone")),
    Rule("a padded batch is one pass", _PADDED, _but("chunk", "whole")),
    Rule(
        "a padded batch has rows, and a slot for each token", _PADDED, _but("cache", "contiguous")
    ),
    Rule("a padded batch is computed, not generated", _PADDED, _only("n", "3")),
    Rule("a padded batch is computed, not generated", _PADDED, _but("pre-empted", "no")),
    Rule("a padded batch is computed, not generated", _PADDED, _but("drafts", "none")),
    Rule(
        "one token more a pass leaves few drafts to try",
        _only("chunk", "1"),
        _but("drafts", "none"),
    ),
    Rule(
        "with drafts the others are done before anybody has to make room for them",
        _but("pre-empted", "no"),
        _but("drafts", "none"),
    ),
    Rule(
        "rows keep nothing for later requests",
        _only("cache", "contiguous", "ring"),
        _but("prefix", "cold"),
    ),
    Rule("the batch-invariant mode is not compiled", _COMPILED, _but("mode", "ordinary")),
    Rule(
        "a graph has no probes, which tell the experts of a token",
        _COMPILED,
        _only("model", "mixtral", "qwen3-moe", "gpt-oss", "deepseek-v3"),
    ),
    Rule("a padded batch is computed, not generated", _COMPILED, _only("packing", "padded batch")),
    Rule(_FEW_SHAPES, _COMPILED, _but("chunk", "whole")),
    Rule(_FEW_SHAPES, _COMPILED, _but("pre-empted", "no")),
    Rule(_FEW_SHAPES, _COMPILED, _only("prefix", "partial")),
    Rule(_FEW_SHAPES, _COMPILED, _but("drafts", "none")),
    Rule(_FEW_CALLS, _FLEX, _only("chunk", "1", "2")),
    Rule(_FEW_CALLS, _FLEX, _only("batch", "beside seven")),
    Rule(_FEW_CALLS, _FLEX, _only("n", "3")),
    Rule(_FEW_CALLS, _FLEX, _only("pre-empted", "twice")),
    Rule("flex has graphs of its own", _FLEX, _COMPILED),
    Rule(
        "who is alone has nobody to make room for",
        _only("batch", "alone"),
        _but("pre-empted", "no"),
    ),
)


@cache
def reason_against(pair: Pair) -> str | None:
    """Why two values cannot meet, where a rule says so itself."""
    return next((rule.reason for rule in RULES if rule.forbids(pair)), None)


def of_models(names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The axes with these models alone, all if there are none; RequestError where one is not among them."""
    for name in names:
        if name not in AXES["model"]:
            raise RequestError(
                f"no model {name!r} in the matrix; there are {', '.join(AXES['model'])}"
            )
    return {**AXES, "model": tuple(names) or AXES["model"]}
