"""Faults of speculative decoding: drafts that are taken, or taken back, wrongly.

As those of schedules they show in no golden: the machine of tests/engine/machine.py finds them.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_ACCEPTANCE = "Leviathan et al. 2023, section 2.3"
_ROLLBACK = "Leviathan et al. 2023, algorithm 1"
_PAGED_ATTENTION = "Kwon et al. 2023, section 4"
_LONGROPE = "Ding et al. 2024"
_ORCA = "Yu et al. 2022, section 3"


def _accepting(id: str, wrong: str, old: str, new: str, source: str = _ACCEPTANCE) -> Mutant:
    return fault(f"draft-{id}", wrong, source, "generate/speculation.py", old, new, "logits")


_CHOSEN = "if request.done or piece.token_ids != (draft,):"
_ROWS = "zip((*drafts, None), logits, strict=True)"

SPECULATION: tuple[Mutant, ...] = (
    _accepting(
        "never-compared",
        "goes on choosing behind drafts that were not chosen",
        _CHOSEN,
        "if request.done:",
    ),
    _accepting(
        "taken-as-it-is",
        "takes every draft for the request's choice",
        "piece = request.choose(row)",
        "piece = request.choose(row + 1e9 * (row.new_tensor(range(len(row))) == draft))",
    ),
    _accepting(
        "rows-not-moved",
        "chooses every token from the logits before the first draft",
        _ROWS,
        "zip((*drafts, None), logits[:1].expand_as(logits), strict=True)",
    ),
    _accepting(
        "bonus-from-the-first-row",
        "chooses the token behind the last draft from the logits before the first one",
        _ROWS,
        "zip((*drafts, None), (*logits[:-1], logits[0]), strict=True)",
    ),
    _accepting(
        "no-bonus",
        "reads the last draft and chooses nothing behind it",
        _ROWS,
        "zip(drafts or (None,), logits, strict=False)",
    ),
    _accepting(
        "drawn-twice",
        "draws another token where it has drawn one that was not drafted",
        _CHOSEN,
        "if request.done or (\n"
        "            piece.token_ids != (draft,) and (not drafts or request._sampler(row) > -1)\n"
        "        ):",
    ),
    _accepting(
        "across-the-turn",
        "drafts across the length behind which other frequencies hold",
        "ends = (share.request.longest, *spec.rope_borders)",
        "ends = (share.request.longest,)",
        _LONGROPE,
    ),
    _accepting(
        "behind-the-end",
        "drafts more tokens than the answer can have",
        "ends = (share.request.longest, *spec.rope_borders)",
        "ends = (share.request.longest + 9, *spec.rope_borders)",
        _ORCA,
    ),
    _accepting(
        "not-counted",
        "does not take drafts off the budget of a pass",
        "            left -= len(drafts)\n",
        "",
        _ORCA,
    ),
    _accepting(
        "without-slots",
        "drafts where the cache has no slots for it",
        "except CacheFullError:\n        return False",
        "except CacheFullError:\n        return True",
        _PAGED_ATTENTION,
    ),
    fault(
        "rewind-forgotten",
        "leaves drafts in the cache that were not chosen",
        _ROLLBACK,
        "cache/cache.py",
        "            )\n        room.length = length",
        "            )",
        "logits",
    ),
    fault(
        "rewind-by-one-too-many",
        "takes back the last draft that was chosen",
        _ROLLBACK,
        "generate/scheduler.py",
        "self.cache.rewind(room, len(request.tokens) - 1)",
        "self.cache.rewind(room, max(read, len(request.tokens) - 2))",
        "logits",
    ),
    fault(
        "rewind-to-the-start",
        "takes back all drafts, also those that were chosen",
        _ROLLBACK,
        "generate/scheduler.py",
        "self.cache.rewind(room, len(request.tokens) - 1)",
        "self.cache.rewind(room, read)",
        "logits",
    ),
    fault(
        "rewind-keeps-blocks",
        "keeps the blocks of drafts that were taken back",
        _PAGED_ATTENTION,
        "cache/paged.py",
        "self._cut(room, math.ceil(length / self.block_size))",
        "self._cut(room, len(room.blocks))",
        "logits",
    ),
    fault(
        "rewind-cuts-a-block",
        "gives up the block of drafts with the tokens before them in it",
        _PAGED_ATTENTION,
        "cache/paged.py",
        "self._cut(room, math.ceil(length / self.block_size))",
        "self._cut(room, length // self.block_size)",
        "logits",
    ),
    fault(
        "ring-overwritten",
        "has a ring with slots for one token of a pass, which drafts write over a window's",
        "ggml-org/llama.cpp#13194",
        "cache/contiguous.py",
        "window - 1 + self.longest_pass",
        "window",
        "logits",
    ),
)
