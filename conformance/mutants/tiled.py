"""Faults of attention in tiles: what runs along from tile to tile, and which tiles are left out.

Judged by families whose scores torch's own kernel cannot form, so that their chunks come in tiles.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, knob

_TILED = "backends/tiled.py"
_CONTEXT = "attn.context"
_ONLINE = "Milakov and Gimelshein 2018, algorithm 3"
_TILES = "Dao et al. 2022, algorithm 1"
_SINK = "pytorch/torchtitan#2211"

TILED: tuple[Mutant, ...] = (
    knob(
        "gemma2",
        "tiled-context-not-scaled-down",
        "leaves what was mixed so far as it is when a larger score comes",
        _TILES,
        _TILED,
        "context = context * kept + ",
        "context = context + ",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-total-not-scaled-down",
        "leaves the sum of weights as it is when a larger score comes",
        _ONLINE,
        _TILED,
        "total = total * kept + ",
        "total = total + ",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-largest-of-the-tile",
        "takes the largest score of each tile alone, which is minus infinity where none is seen",
        _ONLINE,
        _TILED,
        "torch.maximum(highest, s.amax(-1, keepdim=True))",
        "s.amax(-1, keepdim=True)",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-total-of-the-last-tile",
        "divides by the weights of the last tile alone",
        _ONLINE,
        _TILED,
        "total = total * kept + w.sum(",
        "total = w.sum(",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-unmasked",
        "leaves out tiles that no query sees, and sees all of the others",
        _TILES,
        _TILED,
        "s = s.masked_fill(~view.visible, -torch.inf)",
        "s = s.contiguous()",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-seen-by-the-first-query",
        "leaves out tiles of keys that a tile's first query does not see yet",
        _TILES,
        _TILED,
        "keys.first <= queries.last and",
        "keys.first <= queries.first and",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-window-of-the-last-query",
        "leaves out tiles of keys that a tile's last query no longer sees",
        "Beltagy et al. 2020 (Longformer), section 3.1",
        _TILED,
        "keys.last > queries.first - window",
        "keys.last > queries.last - window",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-softcap-dropped",
        "does not bend scores in the kernel that works in tiles",
        "Gemma Team 2024 (Gemma 2), section 2",
        _TILED,
        "softcap(products * attn.scale, attn.softcap, self.arithmetic)",
        "products * attn.scale",
        _CONTEXT,
    ),
    knob(
        "gemma2",
        "tiled-kv-heads-tiled",
        "gives query head h the key head h mod K instead of h // (H / K)",
        "apple/axlearn#842",
        _TILED,
        "grouped = q.float().reshape(B, K, H // K * m, D)",
        "grouped = q.float().unflatten(1, (H // K, K)).transpose(1, 2).reshape(B, K, -1, D)",
        _CONTEXT,
    ),
    knob(
        "gpt_oss",
        "tiled-sinks-dropped",
        "leaves the sinks out in the kernel that works in tiles",
        _SINK,
        _TILED,
        "if attn.sinks is None:",
        "if True:",
        _CONTEXT,
    ),
    knob(
        "gpt_oss",
        "tiled-sinks-without-a-share",
        "lets a sink be the largest score, and does not add its weight",
        _SINK,
        _TILED,
        "total = torch.ones_like(highest, dtype=torch.float64)",
        "total = torch.zeros_like(highest, dtype=torch.float64)",
        _CONTEXT,
    ),
    knob(
        "gpt_oss",
        "tiled-sinks-in-every-tile",
        "adds the sink's weight once for each tile",
        _SINK,
        _TILED,
        "total = total * kept + ",
        "total = total * kept + torch.exp(attn.sinks.view(-1, 1, 1) - higher) + ",
        _CONTEXT,
    ),
)
