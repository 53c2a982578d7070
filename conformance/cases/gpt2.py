"""gpt2: learned positions, layer norms with biases, a plain MLP, matrices stored [in, out]."""

from __future__ import annotations

from typing import Any

from conformance.cases.case import DRAWS, Case, Draw

_DRAWS = {
    "*.ln_*.weight": DRAWS["*norm.weight"],
    "*.c_*.weight": Draw(spread=1.5, inputs=0),
    "*.wte.weight": Draw(),
    "*.wpe.weight": Draw(),
    **DRAWS,
}
#: Embeddings of a tied head are small, and positions no larger, so that both count.
_TIED = {**_DRAWS, "*.wte.weight": Draw(spread=0.3), "*.wpe.weight": Draw(spread=0.3)}


def _gpt2(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 61,
        "n_positions": 56,
        "n_embd": 36,
        "n_layer": 2,
        "n_head": 3,
        "n_inner": None,
        "layer_norm_epsilon": 1e-2,
        "bos_token_id": None,
        "eos_token_id": None,
    } | changes


CASES: tuple[Case, ...] = (
    Case("gpt2", "gpt2", _gpt2(), seed=18, draws=_TIED),
    Case(
        "gpt2-inverse-layer",
        "gpt2",
        _gpt2(
            n_embd=40,
            n_layer=3,
            n_head=4,
            n_inner=50,
            scale_attn_by_inverse_layer_idx=True,
        ),
        seed=6,
        draws=_TIED,
    ),
    Case(
        "gpt2-untied",
        "gpt2",
        _gpt2(
            vocab_size=67,
            n_embd=30,
            n_inner=44,
            activation_function="gelu",
            scale_attn_weights=False,
            tie_word_embeddings=False,
        ),
        seed=3,
        draws=_DRAWS,
    ),
)
