"""A user's own attention: the document's examples against a plain twin, on all kernels, in chunks and caches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import Custom, Engine
from engine.backends import BACKENDS, backend, eager, supports
from engine.cache import ContiguousCache, RingCache
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.mask import PositionFunction, View
from tests.engine import tiny
from tests.engine.zoo import ATTENTION, LAYER, ZOO, model

DOCUMENT = Path(__file__).parents[2] / "docs" / "custom-attention.md"
CODE = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
#: What each example says, of one query head and two positions: whether it sees, and what is added.
TWINS: dict[str, Callable[[int, int, int], tuple[bool, float]]] = {
    "blocks": lambda h, q, k: (k // 16 in (q // 16, 0), 0.0),
    "alibi": lambda h, q, k: (True, -(0.25 ** (h + 1)) * (q - k)),
}
IDS = [i * 7 % 50 for i in range(60)]
KERNELS = [name for name, known in BACKENDS.items() if "custom mask" not in known.lacks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_folder(tmp_path_factory.mktemp("model") / "m", tiny.CASE)


@pytest.fixture(scope="module")
def examples(folder: Path) -> dict[str, Engine]:
    """What the document's code loads, by the name of its function."""
    engines = {}
    for name, code in zip(TWINS, CODE, strict=True):
        assert len(code.splitlines()) < 20
        scope: dict[str, Any] = {"MODEL": folder}
        exec(code, scope)  # noqa: S102 (the document is ours)
        assert callable(scope[name])
        engines[name] = scope["engine"]
    return engines


def weights(engine: Engine, seen: dict[str, Tensor], layer: int, name: str) -> Tensor:
    """Each head's softmax over the keys of each query, one by one in float64: [H, T, T]."""
    attn = engine.spec.layers[layer].attn
    q, k = (seen[f"layers.{layer}.attn.{part}"][0].double() for part in ("q_rope", "k_rope"))
    H, T = q.shape[:2]
    out = torch.zeros(H, T, T, dtype=torch.float64)
    for h in range(H):
        for t in range(T):
            for s in range(t + 1):
                sees, added = TWINS[name](h, t, s)
                score = float(q[h, t] @ k[h * len(k) // H, s]) * attn.scale + added
                out[h, t, s] = score if sees else -torch.inf
            out[h, t, : t + 1] = out[h, t, : t + 1].softmax(-1)
    return out


@pytest.mark.parametrize("name", list(TWINS))
def test_the_examples_of_the_document_equal_a_plain_twin(
    name: str, examples: dict[str, Engine]
) -> None:
    """Query by query and key by key; without the example the weights would be others."""
    engine = examples[name]
    engine.decoder.use(eager.attend)
    seen = engine.trace(IDS)
    got = seen["layers.1.attn.weights"][0]
    want = weights(engine, seen, 1, name)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    values = seen["layers.1.attn.v"][0].double().repeat_interleave(2, 0)
    for kernel in KERNELS:
        engine.decoder.use(BACKENDS[kernel].attend)
        context = engine.trace(IDS)["layers.1.attn.context"][0].double()
        torch.testing.assert_close(context, want @ values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["eager", "tiled", "sdpa"])
@pytest.mark.parametrize("name", list(TWINS))
def test_chunks_and_caches_give_what_one_pass_gives(
    name: str, kernel: str, examples: dict[str, Engine]
) -> None:
    """With windows of the model's own, so that a ring forgets what the mask would still show."""
    custom = examples[name].decoder.custom
    window = replace(LAYER, attn=replace(ATTENTION, window=9))
    spec = model(LAYER, window)
    decoder = tiny.filled(Decoder(spec, backend(kernel, spec, custom), custom=custom))
    ids = [token % spec.vocab_size for token in IDS]
    whole = tiny.logits(decoder, ids)
    plain = tiny.logits(tiny.filled(Decoder(spec, BACKENDS[kernel].attend)), ids)
    assert (whole - plain)[32:].abs().amax(-1).min() > 1e-3
    for steps, cache in (
        ([7] * 8 + [4], ContiguousCache(spec, 60)),
        ([20, *[1] * 10, 17, 13], RingCache(spec, 60, longest_pass=20)),
    ):
        got = tiny.logits(decoder, ids, steps, cache)
        torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-4)


def test_bits_of_the_invariant_mode_are_the_same_with_a_custom_attention(folder: Path) -> None:
    custom = Custom(
        mask=lambda q_pos, k_pos: (q_pos - k_pos) % 3 != 1,
        bias=lambda q_pos, k_pos: torch.sin(0.1 * (q_pos - k_pos)),
    )
    engine = Engine.load(folder, batch_invariant=True, custom=custom)
    whole = engine.logits(IDS)
    assert torch.equal(whole, engine.logits(IDS, chunk=7))
    assert not torch.equal(whole, Engine.load(folder, batch_invariant=True).logits(IDS))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("part", ["mask", "bias"])
def test_a_kernel_that_forgets_it_is_found(
    part: str, kernel: str, monkeypatch: pytest.MonkeyPatch, examples: dict[str, Engine]
) -> None:
    """The fault that the checks above are for: each kernel asks the view, which says nothing here."""
    engine = examples["blocks" if part == "mask" else "alibi"]
    engine.decoder.use(BACKENDS[kernel].attend)
    right = engine.logits(IDS)
    view = View.__init__

    def forgetful(self: View, *args: Any) -> None:
        view(self, *args[:3])

    monkeypatch.setattr(View, "__init__", forgetful)
    assert (engine.logits(IDS) - right)[40:].abs().amax(-1).min() > 1e-3


SOME = torch.randn(8, 8)
FAULTS: dict[str, tuple[Custom, str]] = {
    "shape": (
        Custom(bias=lambda q, k: torch.zeros(3, 1, 1)),
        r"custom bias must fit \[batch, heads, queries, keys\].*it gives \[3, 1, 1\]",
    ),
    "no tensor": (Custom(bias=lambda q, k: 1.0), "custom bias must give a tensor, not a float"),  # type: ignore[arg-type,return-value]
    "numbers": (Custom(mask=lambda q, k: (q > k).int()), r"mask must give bool.*torch\.int32"),
    "integers": (Custom(bias=lambda q, k: q - k), r"bias must give floating numbers.*int64"),
    "nan": (Custom(bias=lambda q, k: ((q - k) / (q - k)).float()), "bias gives NaN"),
    "blind": (
        Custom(mask=lambda q, k: k < q),
        "hides every key from the token at position 0; let each token see itself",
    ),
    "index": (
        Custom(mask=lambda q, k: torch.arange(k.shape[-1]) % 2 == (q - q.amin()) % 2),
        "custom mask must hang on the positions of queries and keys alone",
    ),
    "chance": (
        Custom(bias=lambda q, k: torch.rand(q.shape[2], k.shape[3])),
        "custom bias must hang on the positions of queries and keys alone",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_faulty_attention_is_one_sentence_before_anything_is_loaded(
    fault: str, folder: Path
) -> None:
    custom, message = FAULTS[fault]
    with pytest.raises(RequestError, match=message):
        Engine.load(folder, custom=custom)


@pytest.mark.parametrize("part", ["mask", "bias"])
def test_a_kernel_that_cannot_honour_it_refuses_by_name(part: str) -> None:
    function: PositionFunction = lambda q, k: q >= k  # noqa: E731
    custom = Custom(**{part: function})
    assert supports("flash", ZOO["plain"]) and not supports("flash", ZOO["plain"], custom)
    sentence = f"flash has no custom {part}, which is needed here; use eager, tiled, sdpa, flex"
    with pytest.raises(RequestError, match=sentence):
        backend("flash", ZOO["plain"], custom)
    both = replace(ZOO["plain"], layers=ZOO["sinks"].layers)
    with pytest.raises(RequestError, match=f"flash has no custom {part} and no sinks"):
        backend("flash", both, custom)
    assert backend(None, both, custom) is eager.attend
