"""Faults of the key/value cache: what is written, where, how far, and what is read back."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

CACHE: tuple[Mutant, ...] = (
    fault(
        "cache-stale-slot",
        "writes each step's keys one slot too early",
        "huggingface/transformers#37574",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'at = start - (start > 0 and held is self.room["k"]); '
        "held[:, :, at : at + stop - start] = tokens",
        "cache.k",
    ),
    fault(
        "cache-values-are-keys",
        "stores the keys as values",
        "huggingface/transformers#43082",
        "cache/contiguous.py",
        "zip(self.room.values(), new, strict=True)",
        "zip(self.room.values(), (new[0], new[0]), strict=True)",
        "cache.v",
    ),
    fault(
        "cache-not-advanced",
        "writes every step over the first slots",
        "ggml-org/llama.cpp#27148",
        "cache/contiguous.py",
        "        self.length = stop\n        for held",
        "        self.length = start\n        for held",
        "cache.k cache.v",
    ),
    fault(
        "positions-restart",
        "starts at position 0 again in every chunk",
        "huggingface/transformers#43082",
        "cache/contiguous.py",
        "return held[start:], held",
        "return held[:n_new], held",
        "attn.q_rope attn.k_rope attn.scores attn.context",
    ),
    fault(
        "cache-read-to-capacity",
        "gives the whole of its room, slots included that hold nothing yet",
        "huggingface/transformers#43082",
        "cache/contiguous.py",
        "(held[:, :, :stop])",
        '(held if name == "k" else held[:, :, :stop])',
        "cache.k",
    ),
    fault(
        "cache-decode-values-lost",
        "keeps the values of chunks and none of single tokens",
        "GeeeekExplorer/nano-vllm#213",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'held[:, :, start:stop] = tokens if held is self.room["k"] or tokens.shape[2] > 1 else 0',
        "cache.v",
    ),
    fault(
        "cache-narrow",
        "keeps keys in half precision, whatever the run's",
        "huggingface/trl#4770",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'held[:, :, start:stop] = tokens.bfloat16() if held is self.room["k"] else tokens',
        "cache.k",
    ),
    fault(
        "cache-chunk-edge",
        "stores the last token of a chunk in the place of its first one, too",
        "mistralai/mistral-inference#88",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'held[:, :, start:stop] = tokens if held is self.room["k"] else '
        "torch.cat((tokens[:, :, -1:], tokens[:, :, 1:]), dim=2)",
        "cache.v",
    ),
    fault(
        "cache-rolls-too-early",
        "wraps around one token before its room is full",
        "ml-explore/mlx-examples#1093",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'at = 0 if held is self.room["k"] and stop >= held.shape[2] else stop - 1; '
        "held[:, :, start:stop] = tokens; held[:, :, at : at + 1] = tokens[:, :, -1:]",
        "cache.k",
    ),
    fault(
        "cache-heads-exchanged",
        "writes value heads in the reverse order",
        "apple/axlearn#842",
        "cache/contiguous.py",
        "held[:, :, start:stop] = tokens",
        'held[:, :, start:stop] = tokens if held is self.room["k"] else tokens.flip(1)',
        "cache.v",
    ),
    fault(
        "cache-of-the-last-request",
        "serves the next request from a cache that still holds the last one",
        "mudler/LocalAI#6747",
        "generate/engine.py",
        "cache = self.new_cache(len(ids) + n_max)",
        'cache = self.__dict__.setdefault("_kept", self.new_cache(4 * (len(ids) + n_max)))',
        "generate",
    ),
)
