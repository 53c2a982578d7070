"""Plain questions to the reference: logits, greedy tokens; and goldens of its answers to long prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from conformance.cases.answers import ANSWER, BEST, PROMPTS, AnswersCase
from conformance.golden import sha256, write_manifest
from conformance.oracle.model import Oracle, load
from conformance.oracle.text import Reference
from conformance.process import ROOT
from conformance.reorder import PLAIN, Variant
from conformance.tokens import multilingual_text
from engine.errors import LockstepError

Progress = Callable[[str], None]


def logits(model: Any, ids: Sequence[int], attention: str) -> Tensor:
    """Logits [T, V] of one whole pass with transformers' own attention ("eager" or "sdpa")."""
    model.set_attn_implementation(attention)
    with torch.inference_mode():
        result: Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return result


def logits_in_chunks(model: Any, ids: Sequence[int], size: int) -> Tensor:
    """Logits [T, V] by eager attention, `size` tokens at a time through transformers' own cache."""
    shown: list[Tensor] = []

    def tap(probe: str, value: Tensor) -> Tensor:
        if probe == "logits":
            shown.append(value[0].clone())
        return value

    oracle = Oracle(model, Variant(threads=torch.get_num_threads()))
    oracle.begin(len(ids))
    for chunk in torch.tensor(list(ids)).split(size):
        oracle.step(chunk, tap)
    return torch.cat(shown)


def greedy(model: Any, ids: Sequence[int], max_tokens: int) -> list[int]:
    """The tokens that `generate` chooses without sampling, the end token included."""
    prompt = torch.tensor([list(ids)])
    with torch.inference_mode():
        result = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
    answer: list[int] = result[0, len(ids) :].tolist()
    return answer


# -- goldens ---------------------------------------------------------------------------------------

DTYPES = ("float32", "bfloat16")
RANDOM = 16  # tokens that are looked at after every position
_BLOCK = 128  # positions whose logits are formed at once

#: The reference's own ways to run a prompt. What they move is what another processor may move, too: its
#: two kernels alone are one and the same where there is one key, and on one processor round alike.
_LEGAL = (
    PLAIN,
    Variant(attention="sdpa"),
    Variant(permute=1),
    Variant(permute=2, attention="sdpa"),
    Variant(other_kernels=True),
)


def capture_answers(case: AnswersCase, path: Path, out: Path, progress: Progress) -> None:
    """Writes the golden of a .gguf model's answers (see `conformance.answers`) into `out`."""
    torch.set_num_threads(1)
    progress("the prompt")
    text = f"{multilingual_text()}\n{(ROOT / 'LICENSE').read_text(encoding='utf-8')}"
    ids = Reference.of_gguf(path).encode(text).ids[: PROMPTS[-1]]
    if len(ids) < PROMPTS[-1]:
        raise LockstepError(f"{case.name}: the text has only {len(ids)} tokens")
    kept = {"ids": torch.tensor(ids, dtype=torch.int32)}
    for name in DTYPES:
        progress(f"{name}: the model")
        model = load(path, getattr(torch, name))
        if name == "float32":
            generator = torch.Generator("cpu").manual_seed(0)
            size = model.config.vocab_size
            kept["random"] = torch.randint(size, (RANDOM,), generator=generator).int()
        progress(f"{name}: logits of {len(ids)} tokens")
        legal = _LEGAL if name == "float32" else _LEGAL[:2]
        states = [_last_states(model, ids, variant) for variant in legal]
        if name == "float32":
            kept |= _rows(model, states, kept["random"])
        kept[f"{name}.noise"] = _noise(model, states, kept)
        for n in PROMPTS if name == "float32" else ():
            progress(f"{name}: the answer to {n} tokens")
            best = _answer(model, ids[:n]).topk(BEST)
            kept[f"answer.{n}.ids"], kept[f"answer.{n}.logits"] = best.indices.int(), best.values
        del model
    out.mkdir(parents=True)
    save_file(
        {key: tensor.contiguous() for key, tensor in kept.items()}, out / "answers.safetensors"
    )
    write_manifest(
        out,
        {
            "case": case.name,
            "kind": "answers",
            "checkpoint": case.model,
            "checkpoint_sha256": sha256(path),
            "text": "golden/multilingual.json, a line break, LICENSE",
            "command": f"lockstep golden capture {case.name}",
            "versions": {
                "transformers": transformers.__version__,
                "torch": torch.__version__.partition("+")[0],
                "tokenizers": tokenizers.__version__,
            },
        },
    )


@torch.inference_mode()
def _last_states(model: Any, ids: Sequence[int], variant: Variant) -> Tensor:
    """What enters the head after one whole pass: [T, dim]."""
    model.set_attn_implementation(variant.attention)
    with variant.in_force():
        states: Tensor = model.base_model(torch.tensor([list(ids)]), use_cache=False)[0][0]
    return states


@torch.inference_mode()
def _rows(model: Any, states: Sequence[Tensor], random: Tensor) -> dict[str, Tensor]:
    """The tensors `rows.*` of the first states, and the largest difference that the others make."""
    head = model.get_output_embeddings()
    parts: dict[str, list[Tensor]] = {"ids": [], "logits": [], "random": [], "difference": []}
    for plain, *others in zip(*(state.split(_BLOCK) for state in states), strict=True):
        logits = head(plain)
        best = logits.topk(BEST)
        parts["ids"].append(best.indices.int())
        parts["logits"].append(best.values)
        parts["random"].append(logits[:, random.long()])
        moved = [(head(other) - logits).abs().amax(-1) for other in others]
        parts["difference"].append(torch.stack(moved).amax(0))
    return {f"rows.{name}": torch.cat(blocks) for name, blocks in parts.items()}


@torch.inference_mode()
def _noise(model: Any, states: Iterable[Tensor], kept: Mapping[str, Tensor]) -> Tensor:
    """The largest distance of a kept logit, in this dtype, from what is kept of float32: [T]."""
    weight = model.get_output_embeddings().weight
    rows, random = kept["rows.ids"].long(), kept["random"].long()
    expected = torch.cat([kept["rows.logits"], kept["rows.random"]], dim=1)
    largest = torch.zeros(len(rows))
    for state in states:
        best = torch.stack([weight[tokens] @ row for tokens, row in zip(rows, state, strict=True)])
        logits = torch.cat([best, state @ weight[random].T], dim=1).float()
        largest = torch.maximum(largest, (logits - expected).abs().amax(-1))
    return largest


@torch.inference_mode()
def _answer(model: Any, ids: Sequence[int]) -> Tensor:
    """The logits [ANSWER, V] from which `generate` chose, past any end token, by eager attention."""
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([list(ids)])
    said = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=ANSWER,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(said.logits)
    if logits.argmax(-1).tolist() != said.sequences[0, len(ids) :].tolist():
        raise LockstepError("the reference's answer is not the greedy one of its logits")
    return logits
