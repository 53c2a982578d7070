"""Small models of every kind of block, as specs: what the sixteen families are made of, without a file."""

from __future__ import annotations

from dataclasses import replace

from engine.spec import (
    ClampedSwiGLU,
    DenseMLP,
    GroupedQueryAttention,
    Groups,
    LatentAttention,
    LayerNorm,
    LayerSpec,
    ModelSpec,
    MoE,
    QKNorm,
    RMSNorm,
    Rope,
    Router,
    Scale,
)

DIM, CONTEXT = 20, 64
NORM = RMSNorm(1e-3)
ROPE = Rope(6, 100.0)
ATTENTION = GroupedQueryAttention(n_heads=4, n_kv_heads=2, head_dim=6, scale=0.5, rope=ROPE)
LAYER = LayerSpec(NORM, ATTENTION, NORM, DenseMLP(13))


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec(31, DIM, CONTEXT, layers, final_norm=NORM, tied_head=False)


def _windows() -> ModelSpec:
    """Norms on both sides, every other layer a window, scores and logits bounded."""
    norm = RMSNorm(1e-3, product_in_float32=True, plus_one=True)
    both = replace(LAYER, pre_attn_norm=norm, post_attn_norm=norm, post_mlp_norm=norm)
    attn = replace(ATTENTION, softcap=2.0)
    sliding = replace(both, attn=replace(attn, window=5, rope=replace(ROPE, theta=1e4)))
    return replace(
        model(sliding, replace(both, attn=attn), sliding),
        embed_scale=Scale(DIM**0.5, rounded=True),
        logit_softcap=3.0,
        tied_head=True,
    )


def _sinks() -> ModelSpec:
    """Sinks, windows and experts with biases."""
    attn = replace(ATTENTION, sinks=True, qkv_bias=True, out_bias=True)
    router = Router("softmax", normalise=True, bias=True)
    moe = MoE(5, 3, 7, router, activation=ClampedSwiGLU(1.7, 1.0), bias=True)
    layer = replace(LAYER, attn=attn, mlp=moe)
    return model(layer, replace(layer, attn=replace(attn, window=4)))


def _latent() -> ModelSpec:
    """Latent attention with and without a latent of queries, experts in groups, the first layer dense."""
    rope = Rope(4, 100.0, interleaved=True)
    attn = LatentAttention(3, 5, 6, 3, 4, 7, 0.4, rope, latent_norm=NORM, bias=True)
    router = Router("sigmoid", normalise=True, scale=1.5, correction=True, groups=Groups(4, 2))
    moe = MoE(8, 3, 7, router, shared=DenseMLP(9))
    return model(
        replace(LAYER, attn=replace(attn, q_rank=None)), replace(LAYER, attn=attn, mlp=moe)
    )


def _learned() -> ModelSpec:
    """Learned positions, layer norms, plain feed-forwards, biases everywhere, and no rope."""
    norm = LayerNorm(1e-3)
    attn = replace(ATTENTION, rope=None, qkv_bias=True, out_bias=True)
    mlp = DenseMLP(13, "gelu_tanh", gated=False, bias=True)
    return replace(
        model(*2 * (LayerSpec(norm, attn, norm, mlp),)),
        final_norm=norm,
        learned_positions=CONTEXT + 2,
    )


def _after() -> ModelSpec:
    """Norms after attention and feed-forward alone, queries and keys normed over all heads."""
    attn = replace(ATTENTION, qk_norm=QKNorm(NORM, "all"))
    return model(*2 * (LayerSpec(None, attn, None, DenseMLP(13), NORM, NORM),))


def _scaled() -> ModelSpec:
    """Constant factors where other models have norms; norms of heads, and a layer without rope."""
    attn = replace(ATTENTION, qk_norm=QKNorm(NORM, "head"), rope=replace(ROPE, dim=4))
    layer = replace(LAYER, attn=attn, post_attn_norm=Scale(0.3), post_mlp_norm=Scale(0.3))
    return replace(
        model(layer, replace(layer, attn=replace(attn, rope=None))),
        embed_scale=Scale(5.0),
        logits_scale=Scale(0.25),
    )


ZOO: dict[str, ModelSpec] = {
    "plain": model(LAYER, LAYER),
    "windows": _windows(),
    "sinks": _sinks(),
    "latent": _latent(),
    "learned": _learned(),
    "after": _after(),
    "scaled": _scaled(),
}
