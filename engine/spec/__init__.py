"""A model's shape as frozen values: everything the decoder needs to build itself, checked once here.

Family files translate a config.json into these types; nothing behind them reads a dictionary.
Names are Llama-3's: dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size. What may be
absent is None; a choice between kinds is a type.
"""

from engine.spec.model import (
    MLP,
    Activation,
    Attention,
    ClampedSwiGLU,
    DenseMLP,
    GroupedQueryAttention,
    Groups,
    LatentAttention,
    LayerNorm,
    LayerSpec,
    ModelSpec,
    MoE,
    Norm,
    QKNorm,
    RMSNorm,
    Router,
    Scale,
)
from engine.spec.position import (
    DynamicScaling,
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "ClampedSwiGLU",
    "DenseMLP",
    "DynamicScaling",
    "FrequencyDivisors",
    "GroupedQueryAttention",
    "Groups",
    "LatentAttention",
    "LayerNorm",
    "LayerSpec",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MoE",
    "ModelSpec",
    "Norm",
    "QKNorm",
    "RMSNorm",
    "Rope",
    "RopeScaling",
    "Router",
    "Scale",
    "YarnScaling",
]
