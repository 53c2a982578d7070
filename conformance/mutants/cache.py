"""Faults of the key/value cache: what is written, where, how far, and what is read back."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_WRITE = "store.write(place, group.of(tokens))"

CACHE: tuple[Mutant, ...] = (
    fault(
        "cache-stale-slot",
        "writes each step's keys one slot too early",
        "huggingface/transformers#37574",
        "cache/cache.py",
        _WRITE,
        'at = int(store is self.stores["k"] and place.slots.start > 0); '
        "slots = slice(place.slots.start - at, place.slots.stop - at); "
        "store.write(type(place)(place.banks, slots), group.of(tokens))",
        "cache.k",
    ),
    fault(
        "cache-values-are-keys",
        "stores the keys as values",
        "huggingface/transformers#43082",
        "cache/cache.py",
        "zip(self.stores.values(), new, strict=True)",
        "zip(self.stores.values(), (new[0], new[0]), strict=True)",
        "cache.v",
    ),
    fault(
        "cache-not-advanced",
        "writes every step over the first slots",
        "ggml-org/llama.cpp#27148",
        "cache/cache.py",
        "layout.place(rooms, old, n)",
        "layout.place(rooms, [0] * len(rooms), n)",
        "cache.k cache.v",
    ),
    fault(
        "positions-restart",
        "starts at position 0 again in every chunk",
        "huggingface/transformers#43082",
        "cache/cache.py",
        "self._positions([room.length - n for room in rooms], n)",
        "self._positions([0 for room in rooms], n)",
        "attn.q_rope attn.k_rope attn.scores attn.context",
    ),
    fault(
        "cache-read-to-capacity",
        "gives the whole of its room, slots included that hold nothing yet",
        "huggingface/transformers#43082",
        "cache/cache.py",
        "(store.read(place))",
        '(store.data if name == "k" else store.read(place))',
        "cache.k",
    ),
    fault(
        "cache-decode-values-lost",
        "keeps the values of chunks and none of single tokens",
        "GeeeekExplorer/nano-vllm#213",
        "cache/cache.py",
        _WRITE,
        'store.write(place, group.of(tokens) if store is self.stores["k"] or tokens.shape[2] > 1 '
        "else torch.zeros_like(tokens))",
        "cache.v",
    ),
    fault(
        "cache-narrow",
        "keeps keys in half precision, whatever the run's",
        "huggingface/trl#4770",
        "cache/cache.py",
        _WRITE,
        "store.write(place, "
        'group.of(tokens).bfloat16() if store is self.stores["k"] else group.of(tokens))',
        "cache.k",
    ),
    fault(
        "cache-chunk-edge",
        "stores the last token of a chunk in the place of its first one, too",
        "mistralai/mistral-inference#88",
        "cache/cache.py",
        _WRITE,
        'store.write(place, group.of(tokens) if store is self.stores["k"] else '
        "torch.cat((tokens[:, :, -1:], tokens[:, :, 1:]), dim=2))",
        "cache.v",
    ),
    fault(
        "cache-rolls-too-early",
        "wraps around one token before its room is full",
        "ml-explore/mlx-examples#1093",
        "cache/cache.py",
        _WRITE,
        "store.write(place, group.of(tokens)); stop = place.slots.stop; "
        'at = 0 if store is self.stores["k"] and stop >= store.data.shape[2] else stop - 1; '
        "store.write(type(place)(place.banks, slice(at, at + 1)), tokens[:, :, -1:])",
        "cache.k",
    ),
    fault(
        "cache-heads-exchanged",
        "writes value heads in the reverse order",
        "apple/axlearn#842",
        "cache/cache.py",
        _WRITE,
        'store.write(place, group.of(tokens) if store is self.stores["k"] else tokens.flip(1))',
        "cache.v",
    ),
)
