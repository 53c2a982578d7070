"""A module with the decoder's parameter names and shapes and no mathematics, on the meta device."""

from __future__ import annotations

import torch
from torch import nn

from engine.spec import ModelSpec


def twin(spec: ModelSpec) -> nn.Module:
    """Every name is a path, as in the decoder: `layers.0.attn.q.weight`, `logits.weight`, ..."""
    with torch.device("meta"):
        model = nn.Module()
        model.embed = nn.Embedding(spec.vocab_size, spec.dim)
        model.layers = nn.ModuleList()
        for layer in spec.layers:
            attn, mlp, block = layer.attn, layer.mlp, nn.Module()
            n_q, n_kv = attn.n_heads * attn.head_dim, attn.n_kv_heads * attn.head_dim
            block.pre_attn_norm = nn.RMSNorm(spec.dim)
            block.attn = nn.Module()
            block.attn.q = nn.Linear(spec.dim, n_q, bias=attn.qkv_bias)
            block.attn.k = nn.Linear(spec.dim, n_kv, bias=attn.qkv_bias)
            block.attn.v = nn.Linear(spec.dim, n_kv, bias=attn.qkv_bias)
            block.attn.out = nn.Linear(n_q, spec.dim, bias=attn.out_bias)
            block.pre_mlp_norm = nn.RMSNorm(spec.dim)
            block.mlp = nn.Module()
            block.mlp.gate = nn.Linear(spec.dim, mlp.ffn_dim, bias=mlp.bias)
            block.mlp.up = nn.Linear(spec.dim, mlp.ffn_dim, bias=mlp.bias)
            block.mlp.down = nn.Linear(mlp.ffn_dim, spec.dim, bias=mlp.bias)
            model.layers.append(block)
        model.final_norm = nn.RMSNorm(spec.dim)
        model.logits = nn.Linear(spec.dim, spec.vocab_size, bias=False)
    return model
