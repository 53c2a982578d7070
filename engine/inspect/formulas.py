"""What each operation computes, in a title, a formula and a sentence, by the name of its probe.

Formulas are those of the model at hand: a norm is its kind of norm, a factor stands there where there is one.
"""

from __future__ import annotations

from engine.spec import (
    DenseMLP,
    LatentAttention,
    LayerNorm,
    LayerSpec,
    ModelSpec,
    MoE,
    Norm,
    RMSNorm,
    Scale,
)

#: Title, formula, explanation.
Said = tuple[str, str, str]


def formulas(spec: ModelSpec) -> dict[str, Said]:
    """Of every probe that a model of this shape can show, by its name without the layer."""
    found: dict[str, Said] = {
        "": ("plan of the pass", "", "positions, masks and tables of angles, once for all layers"),
        "embed": _embed(spec),
        "final_norm": ("last norm", _norm(spec.final_norm), "the stream is brought to one size"),
        "logits": _head(spec),
        "after_attn": ("residual sum", "x + attention", "what attention adds to the stream"),
        "out": ("residual sum", "x + feed-forward", "what the feed-forward adds to the stream"),
        "cache": ("into the cache", "", "the new keys and values are written behind the old ones"),
        "cache.k": ("keys", "k₀ … k_S", "all keys so far, read from the cache"),
        "cache.v": ("values", "v₀ … v_S", "all values so far, read from the cache"),
        "cache.latent": ("latents", "c₀ … c_S", "all latents so far, read from the cache"),
        "cache.k_rope": (
            "turned keys",
            "k₀ … k_S",
            "the part of keys with a position, of all heads",
        ),
    }
    seen = _seen(spec)
    for layer in spec.layers:
        found |= {**_of_layer(layer, seen), **found}
    return found


def _seen(spec: ModelSpec) -> str:
    """Which keys a token can see, in a sentence about all layers."""
    windows = {layer.attn.window for layer in spec.layers}
    bounded = " or ".join(f"{window}" for window in sorted(windows - {None}, key=str))
    if not bounded:
        return "the past"
    last = f"the last {bounded} tokens"
    return f"the past, or of {last} in layers with a window" if None in windows else last


def _embed(spec: ModelSpec) -> Said:
    scaled = "" if spec.embed_scale is None else f" · {spec.embed_scale.factor:.6g}"
    learned = "" if spec.learned_positions is None else " + P[position]"
    return "embedding", f"x = E[id]{scaled}{learned}", "a row of the table for each token"


def _head(spec: ModelSpec) -> Said:
    product = "x · Eᵀ" if spec.tied_head else "x · Wᵀ"
    if spec.logits_scale is not None:
        product = f"{spec.logits_scale.factor:.6g} · {product}"
    if cap := spec.logit_softcap:
        product = f"{cap:g} · tanh({product} / {cap:g})"
    where = "the embedding's own table" if spec.tied_head else "a table of its own"
    return "head", product, f"a score of every token of the vocabulary, by {where}"


def _norm(norm: Norm | Scale | None) -> str:
    match norm:
        case RMSNorm():
            weight = "(1 + w)" if norm.plus_one else "w"
            return f"{weight} · x / √(mean(x²) + {norm.eps:g})"
        case LayerNorm():
            return f"w · (x − mean) / √(var + {norm.eps:g}) + b"
        case Scale():
            return f"{norm.factor:.6g} · x"
        case None:
            return "x"


def _of_layer(layer: LayerSpec, seen: str) -> dict[str, Said]:
    return {
        "pre_attn_norm": ("norm", _norm(layer.pre_attn_norm), "before attention"),
        "post_attn_norm": ("norm", _norm(layer.post_attn_norm), "behind attention"),
        "pre_mlp_norm": ("norm", _norm(layer.pre_mlp_norm), "before the feed-forward"),
        "post_mlp_norm": ("norm", _norm(layer.post_mlp_norm), "behind the feed-forward"),
        **_attention(layer, seen),
        **(_dense(layer.mlp, "mlp.") if isinstance(layer.mlp, DenseMLP) else _experts(layer.mlp)),
    }


def _attention(layer: LayerSpec, seen: str) -> dict[str, Said]:
    attn = layer.attn
    score = f"q · kᵀ · {attn.scale:.6g}"
    if attn.softcap:
        score = f"{attn.softcap:g} · tanh({score} / {attn.softcap:g})"
    sink = " over keys and the head's sink" if attn.sinks else ""
    turned = "(a, b) → (a·cos − b·sin, b·cos + a·sin)"
    said = {
        "attn.scores": ("scores", score, f"how well query and key fit; −∞ outside of {seen}"),
        "attn.weights": ("weights", f"softmax(scores){sink}", "each row adds up to 1"),
        "attn.context": ("context", "weights · v", "the values, weighted and added up"),
        "attn.out": ("projection", "context · W_outᵀ", "heads put side by side, and mixed"),
        "attn.q_rope": ("rotation", turned, "pairs of numbers turned by their token's position"),
        "attn.k_rope": ("rotation", turned, "the same for keys"),
    }
    if isinstance(attn, LatentAttention):
        norm = _norm(attn.latent_norm)
        return said | {
            "attn.q_down": ("queries, narrow", "x · Wᵀ", f"a latent of {attn.q_rank} numbers"),
            "attn.q_norm": ("norm", norm, "of the queries' latent"),
            "attn.q": ("queries", "c · Wᵀ", "read from the latent, cut into heads"),
            "attn.kv_down": ("latent", "x · Wᵀ", f"{attn.kv_rank} numbers stand for all keys"),
            "attn.kv_norm": ("norm", norm, "of the latent that is kept"),
            "attn.k": ("positioned keys", "x · Wᵀ", "the part that all heads share"),
            "attn.kv_up": ("keys and values", "c · Wᵀ", "read from the latents"),
        }
    bias = " + b" if attn.qkv_bias else ""
    shared = attn.n_heads // attn.n_kv_heads
    groups = "one for each query head" if shared == 1 else f"each shared by {shared} query heads"
    norm = "" if attn.qk_norm is None else _norm(attn.qk_norm.norm)
    return said | {
        "attn.q": (
            "queries",
            f"x · W_qᵀ{bias}",
            f"cut into {attn.n_heads} heads of {attn.head_dim}",
        ),
        "attn.k": ("keys", f"x · W_kᵀ{bias}", f"{attn.n_kv_heads} heads, {groups}"),
        "attn.v": ("values", f"x · W_vᵀ{bias}", f"{attn.n_kv_heads} heads, {groups}"),
        "attn.q_norm": ("norm", norm, "of queries"),
        "attn.k_norm": ("norm", norm, "of keys"),
    }


def _dense(mlp: DenseMLP, prefix: str) -> dict[str, Said]:
    bias = " + b" if mlp.bias else ""
    act = f"{mlp.activation}(gate) · up" if mlp.gated else f"{mlp.activation}(up)"
    return {
        f"{prefix}gate": ("gate", f"x · W_gateᵀ{bias}", f"widened to {mlp.ffn_dim:,}"),
        f"{prefix}up": ("up", f"x · W_upᵀ{bias}", f"widened to {mlp.ffn_dim:,}"),
        f"{prefix}act": ("activation", act, "number by number"),
        f"{prefix}down": ("down", f"act · W_downᵀ{bias}", "narrowed again"),
    }


def _experts(mlp: MoE) -> dict[str, Said]:
    shared = {} if mlp.shared is None else _dense(mlp.shared, "mlp.shared.")
    chosen = f"{mlp.top_k} of {mlp.n_experts}"
    return {
        "mlp.router_logits": ("router", "x · W_rᵀ", "a score of each expert"),
        "mlp.expert_ids": ("choice", f"best {chosen}", "who is asked"),
        "mlp.expert_weights": ("shares", mlp.router.score, "how much each answer counts"),
        "mlp.experts": ("experts", "Σ share · expert(x)", f"answers of {chosen}, added up"),
        "mlp.out": ("sum", "experts + shared", "with the one that every token asks"),
        **shared,
    }


#: torch's calls in plain words.
CALLS: dict[str, str] = {
    "view": "the same bytes read in another shape",
    "_unsafe_view": "the same bytes read in another shape",
    "reshape": "the same bytes read in another shape",
    "transpose": "two axes exchanged: no byte moves, strides do",
    "t": "a matrix read by columns: no byte moves",
    "expand": "one axis read again and again: no byte is copied",
    "slice": "a part of it, where it lies",
    "split": "cut in parts, where they lie",
    "select": "one index of an axis, where it lies",
    "unsqueeze": "an axis of length 1 more",
    "squeeze": "an axis of length 1 less",
    "alias": "the same tensor by another name",
    "lift_fresh": "numbers from Python",
    "clone": "copied, now in one piece",
    "copy_": "written into its place",
    "index_copy_": "written into its places",
    "cat": "put side by side, copied",
    "_to_copy": "cast to another dtype, or moved",
    "mm": "product of two matrices",
    "addmm": "product of two matrices, and a bias",
    "bmm": "a product of matrices for each head",
    "mul": "products, number by number",
    "add": "sums, number by number",
    "sub": "differences, number by number",
    "div": "quotients, number by number",
    "pow": "powers, number by number",
    "mean": "mean of each row",
    "rsqrt": "1 / √x of each row",
    "_softmax": "e to each score, by their sum",
    "masked_fill": "what may not be seen becomes −∞",
    "silu": "x / (1 + e⁻ˣ)",
    "gelu": "x · Φ(x)",
    "tanh": "bounded by ±1",
    "embedding": "rows of a table",
    "index": "some rows",
    "arange": "0, 1, 2 …",
    "cos": "cosine",
    "sin": "sine",
    "le": "which are not behind",
    "ge": "which are there",
    "gt": "which are near enough",
    "bitwise_and": "both",
    "bitwise_not": "the contrary",
    "maximum": "the larger of two",
}
