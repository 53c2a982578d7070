"""What the KV cache takes and where its tokens lie, in the caches of the engine itself.

Sizes are those of caches that are laid out and not allocated; places are asked of real caches of the
sequence's length, step by step, without a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from engine.cache import BLOCK_SIZE, CACHES, Cache, LayerCache, Part, Room, make_cache
from engine.cache.cache import Layout
from engine.cache.store import Int8Store, Store, StoreKind
from engine.spec import DenseMLP, GroupedQueryAttention, LayerSpec, ModelSpec

_NOWHERE, _HERE = torch.device("meta"), torch.device("cpu")
POINTS = 9  # of the growth, from one token to the model's context


def held(cache: Cache) -> list[dict[str, Any]]:
    """Each layer's share: what it keeps of a token, slots, bytes of all of them and of one token."""
    found = []
    for layer in cast("Sequence[LayerCache]", cache.layers):
        parts = [part for store in layer.stores.values() for part in store.parts]
        layout = cache.layouts[layer.window]
        taken = sum(part.data.nbytes for part in parts)
        found.append(
            {
                "window": layer.window,
                "slots": layout.banks * layout.slots,
                "bytes": taken,
                "per_token": taken // (layout.banks * layout.slots),
            }
        )
    return found


def growth(
    spec: ModelSpec,
    kind: str,
    dtype: torch.dtype,
    store: StoreKind,
    longest_pass: int,
    now: int,
) -> dict[str, Any]:
    """Bytes of this cache and of what it might have been: for `now` tokens, and for more and more."""
    lengths = _lengths(spec.context)

    def taken(spec: ModelSpec, kind: str, dtype: torch.dtype, store: StoreKind) -> list[int]:
        found = []
        for tokens in (now, *lengths):
            cache = make_cache(kind, spec, tokens, 1, longest_pass, dtype, _NOWHERE, store)
            found.append(sum(each.data.nbytes for each in cache.stores()))
        return found

    heads = {layer.attn.n_heads for layer in spec.layers}
    kept = {heads for layer in spec.layers for heads, _ in layer.attn.cached.values()}
    made: list[tuple[str, str, list[int]]] = [
        ("this cache", f"{kind}, {_dtype(dtype, store)}", taken(spec, kind, dtype, store)),
    ]
    if heads != kept:
        every = _counted(heads)
        words = f"one key and value per query head, {every}, where {_counted(kept)} are kept"
        made.append(("multi-head", words, taken(with_all_heads(spec), kind, dtype, store)))
    if kind != "contiguous" and any(layer.attn.window for layer in spec.layers):
        words = "layers with a window keep everything as well"
        made.append(("without a ring", words, taken(spec, "contiguous", dtype, store)))
    for other, words in ((torch.float32, "4 bytes"), (torch.bfloat16, "2 bytes")):
        if other != dtype or store is not Store:
            made.append(
                (_dtype(other, Store), f"{words} a number", taken(spec, kind, other, Store))
            )
    if store is not Int8Store:
        words = "1 byte a number, and a scale of 4 for each head"
        made.append(("int8", words, taken(spec, kind, dtype, Int8Store)))
    made.append(
        ("no cache", "nothing is kept, and everything computed again", [0] * (1 + len(lengths)))
    )
    return {
        "tokens": lengths,
        "variants": [
            {"name": name, "explained": explained, "now": sizes[0], "bytes": sizes[1:]}
            for name, explained, sizes in made
        ],
    }


def _lengths(context: int) -> list[int]:
    """From 1 to the context, evenly."""
    return sorted({max(1, context * i // (POINTS - 1)) for i in range(POINTS)})


def _counted(heads: set[int]) -> str:
    return " or ".join(map(str, sorted(heads)))


def _dtype(dtype: torch.dtype, store: StoreKind) -> str:
    return "int8" if store is Int8Store else str(dtype).removeprefix("torch.")


def with_all_heads(spec: ModelSpec) -> ModelSpec:
    """The model as multi-head attention would have it: a key and a value of each query head."""
    return replace(spec, layers=tuple(map(_with_all_heads, spec.layers)))


def _with_all_heads(layer: LayerSpec) -> LayerSpec:
    attn = layer.attn
    if isinstance(attn, GroupedQueryAttention):
        return replace(layer, attn=replace(attn, n_kv_heads=attn.n_heads))
    # A latent's keys and values, read out: of a token's numbers half in each.
    width = (attn.nope_dim + attn.rope_dim + attn.v_dim) // 2
    return replace(
        layer,
        attn=GroupedQueryAttention(attn.n_heads, attn.n_heads, width, attn.scale, rope=None),
    )


def work(spec: ModelSpec, prompt: int, steps: int) -> dict[str, Any]:
    """Tokens that pass through the model for `steps` answer tokens, and multiplications, with a cache and without.

    Each token is multiplied with the weights of its maps, one at position p with p + 1 keys, or a
    window's, and as many values; and once for each answer token the head is multiplied with.
    """
    maps = sum(multiplied(spec, layer) for layer in spec.layers)
    with_cache = [*range(prompt + steps - 1)]
    without = [p for step in range(steps) for p in range(prompt + step)]

    def counted(positions: list[int], answers: int) -> dict[str, int]:
        attention = sum(_scores(layer, p) for layer in spec.layers for p in positions)
        heads = answers * spec.dim * spec.vocab_size
        return {
            "tokens": len(positions),
            "multiplications": maps * len(positions) + attention + heads,
        }

    return {
        "prefill": counted([*range(prompt)], 1),
        "with_cache": counted(with_cache, steps),
        "without": counted(without, steps),
    }


def multiplied(spec: ModelSpec, layer: LayerSpec) -> int:
    """The weights of a layer's maps that one token is multiplied with; of experts, those it is sent to."""
    dim, attn, mlp = spec.dim, layer.attn, layer.mlp
    if isinstance(attn, GroupedQueryAttention):
        heads = 2 * (attn.n_heads + attn.n_kv_heads)
        of_attention = heads * attn.head_dim * dim
    else:
        queries = attn.n_heads * (attn.nope_dim + attn.rope_dim)
        rank = attn.q_rank
        of_attention = queries * dim if rank is None else rank * (dim + queries)
        of_attention += dim * (attn.kv_rank + attn.rope_dim + attn.n_heads * attn.v_dim)
        of_attention += attn.kv_rank * attn.n_heads * (attn.nope_dim + attn.v_dim)
    if isinstance(mlp, DenseMLP):
        return of_attention + _dense(dim, mlp)
    shared = 0 if mlp.shared is None else _dense(dim, mlp.shared)
    return of_attention + dim * (mlp.n_experts + 3 * mlp.top_k * mlp.ffn_dim) + shared


def _dense(dim: int, mlp: DenseMLP) -> int:
    return dim * mlp.ffn_dim * (3 if mlp.gated else 2)


def _scores(layer: LayerSpec, position: int) -> int:
    """Multiplications of one query with keys, and of its weights with values."""
    attn = layer.attn
    seen = min(position + 1, attn.window or position + 1)
    if isinstance(attn, GroupedQueryAttention):
        return attn.n_heads * attn.head_dim * 2 * seen
    return attn.n_heads * (attn.nope_dim + attn.rope_dim + attn.v_dim) * seen


# -- where tokens lie ------------------------------------------------------------------------------


def places(spec: ModelSpec, prompt: int, steps: int, longest_pass: int) -> list[dict[str, Any]]:
    """For each kind of cache and window: after the prompt and after each step, who lies in which slot.

    Runs are [first slot, first position, tokens]. A paged cache's slots are grouped in blocks, and a
    second sequence, which grows as fast, has every other block.
    """
    small = replace(spec, layers=tuple({x.attn.window: x for x in spec.layers}.values()))
    longest_pass = min(longest_pass, prompt)
    chunks = [min(longest_pass, prompt - done) for done in range(0, prompt, longest_pass)]
    found = []
    for kind in CACHES:
        sequences = 2 if kind == "paged" else 1
        cache = make_cache(
            kind, small, prompt + steps - 1, sequences, longest_pass, torch.float32, _HERE
        )
        rooms = [cache.open() for _ in range(sequences)]
        after: dict[int | None, list[list[list[int]]]] = {window: [] for window in cache.layouts}
        for n in [*chunks, *[1] * (steps - 1)]:
            cache.extend([Part(room, n) for room in rooms])
            if rooms[0].length >= prompt:
                for window, runs in after.items():
                    runs.append(list(_runs(cache.layouts[window], rooms[0])))
        # Windows make a difference to rings alone.
        windows = after if kind == "ring" else [next(iter(after))]
        found += [
            {
                "kind": kind,
                "window": window if kind == "ring" else None,
                "slots": cache.layouts[window].banks * cache.layouts[window].slots,
                "block": BLOCK_SIZE if kind == "paged" else None,
                "after": after[window],
            }
            for window in windows
        ]
    return found


def _runs(layout: Layout, room: Room) -> Iterator[list[int]]:
    first = layout.first(room)
    slots = layout.scattered([room], [first], room.length - first).slots[0].tolist()
    run = [slots[0], first, 0]
    for position, slot in enumerate(slots, first):
        if slot != run[0] + run[2]:
            yield run
            run = [slot, position, 0]
        run[2] += 1
    yield run
