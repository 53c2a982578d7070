"""Public cases of the theme numerics and of expert weights: E04, E06, E09, F07."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine import spec
from engine.backends import eager
from engine.layers import Head, Scale
from engine.mask import View
from engine.moe import MoE
from engine.probe import attached
from tests.engine import tiny
from tests.engine.test_attention import Scores, view
from tests.engine.zoo import ZOO

# -- E04: the cap comes before the mask ------------------------------------------------------------


def weights(q: Tensor, k: Tensor, view: View, attn: Scores) -> Tensor:
    seen: list[Tensor] = []
    attn.weights.register_forward_hook(lambda module, args, value: seen.append(value))
    eager.attend(q, k, k, view, attn)
    return seen[0].flatten()


def test_e04_a_masked_key_gets_no_weight_from_the_cap() -> None:
    """A cap of the mask's minus infinity is minus the cap, which is a score like any other."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([1.0, -2.0, 4.0]).view(1, 1, 3, 1)
    seen = View(torch.tensor([[1]]), torch.tensor([[0, 1, 2]]), None)
    got = weights(q, k, seen, Scores(1.0, softcap=2.0))
    assert got.tolist() == pytest.approx([0.9203728, 0.0796272, 0.0], abs=1e-7)


def test_e04_final_logits_lie_within_their_cap() -> None:
    head = tiny.filled(Head(ZOO["windows"]))
    logits = head(100 * torch.randn(1, 5, 20, generator=torch.Generator().manual_seed(4)))
    assert logits.abs().max() <= 3.0
    assert logits.abs().max() > 2.99, "the cap is near"


# -- E06: embeddings are scaled by a factor of their own dtype -------------------------------------


@pytest.mark.parametrize(
    ("dim", "half", "full"),
    [
        (640, 25.25, 25.298222),
        (1152, 34.0, 33.941124),
        (2048, 45.25, 45.254833),
        (3072, 55.5, 55.425625),
    ],
)
def test_e06_the_root_of_the_width_is_rounded_to_the_embeddings_dtype(
    dim: int, half: float, full: float
) -> None:
    scale = Scale(spec.Scale(dim**0.5, rounded=True))
    assert float(scale(torch.ones((), dtype=torch.bfloat16))) == half
    assert float(scale(torch.ones(()))) == pytest.approx(full, abs=1e-6)


# -- E09: a sink enlarges the denominator and gives nothing ----------------------------------------


def test_e09_a_sink_takes_its_share_and_has_no_value() -> None:
    """Also where there is one key, as in the first step of a decode."""
    q, value = torch.tensor([[[[1.0, 0.0]]]]), torch.eye(2).view(1, 1, 2, 2)
    k = torch.tensor([[2.0, 0.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    attn = Scores(1.0, sinks=torch.tensor([1.5]))
    got = eager.attend(q, k, value, view(1, 1), attn)
    assert got.flatten().tolist() == pytest.approx([0.57409698, 0.07769558], abs=1e-7)
    alone = weights(q, k[:, :, :1], view(0, 1), attn)
    assert alone.tolist() == pytest.approx([0.62245936], abs=1e-7)


# -- F07: the chosen experts' weights, as they are or divided by their sum -------------------------


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [(False, [0.6439143, 0.2368828]), (True, [0.7310586, 0.2689414])],
)
def test_f07_weights_are_divided_by_their_sum_where_the_config_says_so(
    normalise: bool, expected: list[float]
) -> None:
    layer = tiny.filled(MoE(4, spec.MoE(4, 2, 3, spec.Router("softmax", normalise))))
    layer.router_logits.weight = nn.Parameter(torch.eye(4), requires_grad=False)
    seen: dict[str, Tensor] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        seen[probe] = value
        return value

    with attached(keep, ("", layer)):
        layer(torch.tensor([[[2.0, 1.0, 0.0, -1.0]]]))
    assert seen["expert_ids"].flatten().tolist() == [0, 1]
    assert seen["expert_weights"].flatten().tolist() == pytest.approx(expected, abs=1e-7)
