"""A llama in another style, which knows nothing of this project: how production engines are written.

One flat batch of tokens [T, heads, D] without a batch axis, q, k and v from one product, gate and up from
one, the residual sum fused into the norm behind it, keys and values of all layers in one buffer that
is written in place. It loads a Hugging Face checkpoint by itself.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn


class AddNorm(nn.Module):
    """residual += x; the RMS norm of it, and itself. Without a residual yet, x is the residual."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), eps

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else residual + x
        wide = residual.to(torch.float32)
        wide = wide / torch.sqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight, residual


class Linear(nn.Module):
    """x Wᵀ + b, where W and b may be several of the checkpoint's put one below the other."""

    def __init__(self, tensors: dict[str, Tensor], *names: str) -> None:
        super().__init__()
        weight = torch.cat([tensors[f"{n}.weight"] for n in names])
        self.weight = nn.Parameter(weight, requires_grad=False)
        biases = [tensors[f"{n}.bias"] for n in names if f"{n}.bias" in tensors]
        self.register_buffer("bias", torch.cat(biases) if biases else None)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Rotary(nn.Module):
    """Pairs (j, j + D/2) of q and k as complex numbers, turned by their token's angle in float32."""

    def __init__(self, config: dict[str, Any], head_dim: int) -> None:
        super().__init__()
        rope = config["rope_parameters"]
        even = torch.arange(0, head_dim, 2, dtype=torch.float32)
        speed = 1.0 / rope["rope_theta"] ** (even / head_dim)
        if rope["rope_type"] == "linear":
            speed = speed / rope["factor"]
        if rope["rope_type"] == "llama3":
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            turns = rope["original_max_position_embeddings"] / (2 * math.pi / speed)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            speed = (1 - kept) * speed / rope["factor"] + kept * speed
        self.register_buffer("speed", speed, persistent=False)

    def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None, None].float() * self.speed  # [T, 1, D/2]
        turn = torch.polar(torch.ones_like(angles), angles)

        def turned(x: Tensor) -> Tensor:
            real, imaginary = x.float().chunk(2, dim=-1)
            z = torch.complex(real, imaginary) * turn
            return torch.cat([z.real, z.imag], dim=-1).to(x.dtype)

        return turned(q), turned(k)


class Store(nn.Module):
    """Writes k and v [T, K, D] into the buffer [2, capacity, K, D]; views of all that is in it."""

    def forward(self, buffer: Tensor, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = start + len(k)
        buffer[0, start:end] = k
        buffer[1, start:end] = v
        return buffer[0, :end], buffer[1, :end]


class Attend(nn.Module):
    """q [T, H, D] over keys and values [S, K, D]; the last query sees the last key."""

    def forward(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        T, H, D = q.shape
        S, K, _ = keys.shape
        q = q.view(T, K, H // K, D) * D**-0.5
        scores = torch.einsum("tkgd,skd->kgts", q, keys).float()
        later = torch.arange(S)[None, :] > torch.arange(S - T, S)[:, None]
        weights = scores.masked_fill(later.to(q.device), -torch.inf).softmax(-1).to(q.dtype)
        return torch.einsum("kgts,skd->tkgd", weights, values).reshape(T, H, D)


class SiluAndMul(nn.Module):
    def forward(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], at: str) -> None:
        super().__init__()
        self.heads = [config["num_attention_heads"]] + [config["num_key_value_heads"]] * 2
        self.head_dim, eps = config["head_dim"], config["rms_norm_eps"]
        self.norm_1 = AddNorm(tensors[f"{at}.input_layernorm.weight"], eps)
        self.qkv = Linear(tensors, *(f"{at}.self_attn.{n}_proj" for n in "qkv"))
        self.rotary = Rotary(config, self.head_dim)
        self.store, self.attend = Store(), Attend()
        self.o = Linear(tensors, f"{at}.self_attn.o_proj")
        self.norm_2 = AddNorm(tensors[f"{at}.post_attention_layernorm.weight"], eps)
        self.gate_up = Linear(tensors, f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj")
        self.act = SiluAndMul()
        self.down = Linear(tensors, f"{at}.mlp.down_proj")

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, buffer: Tensor
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.norm_1(x, residual)
        heads = self.qkv(x).view(len(x), -1, self.head_dim)  # [T, H + 2K, D]
        q, k, v = heads.split(self.heads, dim=1)
        q, k = self.rotary(positions, q, k)
        keys, values = self.store(buffer, int(positions[0]), k, v)
        x = self.o(self.attend(q, keys, values).flatten(1))
        x, residual = self.norm_2(x, residual)
        return self.down(self.act(self.gate_up(x))), residual


class ForeignLlama(nn.Module):
    """ids [T] at the positions after `length` to logits [T, V]."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        stored = load_file(folder / "model.safetensors", device=device)
        tensors = {name: tensor.to(dtype) for name, tensor in stored.items()}
        self.config = config
        self.embed = nn.Embedding.from_pretrained(tensors["model.embed_tokens.weight"])
        count = config["num_hidden_layers"]
        self.layers = nn.ModuleList(
            Layer(config, tensors, f"model.layers.{i}") for i in range(count)
        )
        self.norm = AddNorm(tensors["model.norm.weight"], config["rms_norm_eps"])
        tied = config["tie_word_embeddings"]
        self.head = Linear(tensors, "model.embed_tokens" if tied else "lm_head")
        self.to(device)

    def reset(self, capacity: int) -> None:
        K, D = self.config["num_key_value_heads"], self.config["head_dim"]
        self.length, weight = 0, self.embed.weight
        self.buffer = weight.new_empty(len(self.layers), 2, capacity, K, D)

    def generate(self, ids: list[int], count: int) -> list[int]:
        """The `count` most likely tokens after `ids`, one by one."""
        self.reset(len(ids) + count)
        fresh, answer = torch.tensor(ids, device=self.embed.weight.device), []
        for _ in range(count):
            fresh = self(fresh)[-1:].argmax(-1)
            answer.append(int(fresh))
        return answer

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(self.length, self.length + len(ids), device=ids.device)
        self.length += len(ids)
        x, residual = self.embed(ids), None
        for layer, buffer in zip(self.layers, self.buffer, strict=True):
            x, residual = layer(x, residual, positions, buffer)
        x, _ = self.norm(x, residual)
        return self.head(x)
