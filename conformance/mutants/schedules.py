"""Faults of paged caches and schedulers, which show in how requests come and go, not in a golden.

They are no part of the catalogue that goldens judge: the machine of tests/engine/machine.py finds them.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_PAGED_ATTENTION = "Kwon et al. 2023, section 4"
_PREFIXES = "Zheng et al. 2023, section 3"
_ORCA = "Yu et al. 2022, section 3"


def _paged(id: str, wrong: str, source: str, old: str, new: str) -> Mutant:
    return fault(f"paged-{id}", wrong, source, "cache/paged.py", old, new, "logits")


def _schedule(id: str, wrong: str, source: str, old: str, new: str) -> Mutant:
    return fault(f"schedule-{id}", wrong, source, "generate/scheduler.py", old, new, "logits")


SCHEDULES: tuple[Mutant, ...] = (
    _paged(
        "written-by-all",
        "writes into a block that other answers hold, too",
        "unslothai/llama.cpp#143",
        "if block is not None and self.pool.holders[block] > 1:",
        "if block is not None and self.pool.holders[block] > 99:",
    ),
    _paged(
        "half-copied",
        "copies the keys of a shared block, and not the values",
        "unslothai/llama.cpp#143",
        "for store in self.stores():\n            store.copy(",
        "for store in [next(self.stores())]:\n            store.copy(",
    ),
    _paged(
        "copies-not-counted",
        "forgets that a copy takes a block when it counts what a pass needs",
        _PAGED_ATTENTION,
        "leaving[block] += 1\n                n += 1",
        "leaving[block] += 1",
    ),
    _paged(
        "copies-counted-twice",
        "counts a copy for the last holder of a block, who needs none",
        _PAGED_ATTENTION,
        "self.pool.holders[block] - leaving[block] > 1",
        "self.pool.holders[block] > 0",
    ),
    _paged(
        "known-overwritten",
        "writes over tokens that others are told to find there",
        "ovg-project/kvcached#362",
        "if self.pool.available:\n                self._copy(room)",
        "if self.pool.available:\n                pass",
    ),
    _paged(
        "evicted-and-known",
        "gives a block away and still finds it under its old tokens",
        "ovg-project/kvcached#362",
        "            self.prefixes.forget(block)\n            self.evictions += 1",
        "            self.evictions += 1",
    ),
    _paged(
        "beginnings-first",
        "gives up the beginning of a sequence before its end",
        _PREFIXES,
        "self._release(room.blocks.pop())",
        "self._release(room.blocks.pop(0))",
    ),
    _paged(
        "all-reused",
        "computes nothing of a prompt that it knows as a whole",
        _PREFIXES,
        "self._reuse(room, ids[:-1])",
        "self._reuse(room, ids)",
    ),
    _paged(
        "learnt-unwritten",
        "takes tokens for known as soon as they are asked for",
        "mudler/LocalAI#6747",
        "ids[len(story.ids) : room.length]",
        "ids[len(story.ids) : len(room.blocks) * self.block_size]",
    ),
    _paged(
        "out-of-place",
        "finds a block by its own tokens, whatever came before them",
        "ovg-project/kvcached#362",
        "return story.path[-1] if story.path else self.prefixes.roots[story.regimes]",
        "return self.prefixes.roots[story.regimes]",
    ),
    _paged(
        "twins-lost",
        "forgets to give back a block when another has the same tokens",
        _PAGED_ATTENTION,
        "room.blocks[len(story.path) - 1] = node.block\n                self._release(own)",
        "room.blocks[len(story.path) - 1] = node.block",
    ),
    _paged(
        "not-held",
        "does not count who shares a block",
        _PAGED_ATTENTION,
        "self.pool.hold(block)\n        room.blocks.append(block)",
        "room.blocks.append(block)",
    ),
    _paged(
        "last-block-kept",
        "closes a sequence and keeps its first block",
        "ggml-org/llama.cpp#27148",
        "self._cut(room, 0)",
        "self._cut(room, 1)",
    ),
    fault(
        "prefix-whole-block",
        "reuses all of a block that begins as the prompt does",
        _PREFIXES,
        "cache/prefixes.py",
        "node, n = nearest, n + shared",
        "node, n = nearest, min(len(ids), n + len(nearest.tokens))",
        "logits",
    ),
    fault(
        "blocks-behind-the-end",
        "reads slots behind the last token of a shorter sequence",
        _PAGED_ATTENTION,
        "cache/blocks.py",
        "positions = torch.minimum(torch.tensor(first)[:, None] + torch.arange(n), last)",
        "positions = torch.tensor(first)[:, None] + torch.arange(n) + 0 * last",
        "logits",
    ),
    fault(
        "blocks-of-the-first",
        "looks all sequences' blocks up in the table of the first",
        _PAGED_ATTENTION,
        "cache/blocks.py",
        "table.gather(1, positions // self.size)",
        "table[:1].expand_as(table).gather(1, positions // self.size)",
        "logits",
    ),
    _schedule(
        "room-kept",
        "forgets a request and not its room",
        "ggml-org/llama.cpp#27148",
        "if request in self.running:\n            self.cache.close(self.running.pop(request))",
        "if request in self.running:\n            self.running.pop(request)",
    ),
    _schedule(
        "one-room-for-all",
        "lets all answers to a prompt write into one room",
        "unslothai/llama.cpp#143",
        "return self.cache.fork(room)",
        "return room",
    ),
    _schedule(
        "rows-exchanged",
        "gives the logits of a pass to its requests in the reverse order",
        _ORCA,
        "zip(shares, logits.split(wanted), strict=True)",
        "zip(shares, reversed(logits.split(wanted)), strict=True)",
    ),
    _schedule(
        "eldest-put-back",
        "takes the place of the request that came first, when blocks run out",
        _ORCA,
        "self._put_back(max(self.running, key=_arrival))",
        "self._put_back(min(self.running, key=_arrival))",
    ),
    _schedule(
        "last-come-first-served",
        "lets a request that comes back stand behind those who came later",
        _ORCA,
        "insort(self.waiting, request, key=_arrival)",
        "self.waiting.append(request)",
    ),
    _schedule(
        "prompt-logprobs-reused",
        "reuses a prompt's beginning though its logprobs are asked for",
        _PREFIXES,
        "reuse = not request.wants_prompt_logprobs",
        "reuse = True",
    ),
    _schedule(
        "budget-spent-twice",
        "does not take what it has admitted off the budget of a pass",
        _ORCA,
        "            left -= n\n            yield Share(request, Part(room, n))",
        "            yield Share(request, Part(room, n))",
    ),
)
