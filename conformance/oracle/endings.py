"""Where answers end: what `generate` answers, and the OpenAI API's rules applied to its ids and text.

transformers has no finish reason, no usage and no text cut before a stop string. The rules:

- the end tokens are those of the request and, unless `ignore_eos`, those of every file that names some;
- the end token belongs to the ids and the count, and its text is not shown;
- a stop string counts in the answer alone; the text ends before it, with the token that completed it
  among the ids; one that the first `min_tokens` tokens complete is text like any other;
- the reason is "stop" at an end token or stop string, also at the last token allowed, else "length".
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from conformance.decision_cases import ABSENT, NAME, TOKENS, Ending, write_model
from conformance.oracle.model import load
from conformance.oracle.script import Script
from conformance.oracle.text import Reference, answer_stop
from engine.errors import LockstepError


def greedy(model: Any, prompt: list[int]) -> tuple[Tensor, list[int]]:
    """Logits float32 [TOKENS, V] of the greedy answer that nothing ends, and its ids."""
    done = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(done.logits).float(), done.sequences[0, len(prompt) :].tolist()


def ended(script: Script, folder: Path, reference: Reference, e: Ending) -> dict[str, Any]:
    """An ending with what comes of it; `folder` has the model."""
    model, prompt, ids = script.model, list(script.prompt), script.logits.argmax(-1).tolist()
    absent = min(set(range(len(ids) + 1)) - set(ids))

    def named(places: int | tuple[int, ...] | None) -> Any:
        if isinstance(places, tuple):
            return [named(place) for place in places]
        return places if places is None else absent if places == ABSENT else ids[places]

    files: dict[str, dict[str, Any]] = {
        "config.json": {"eos_token_id": named(e.config)},
        "tokenizer_config.json": {"eos_token": e.tokenizer},
    }
    if e.generation_config is not None:
        files["generation_config.json"] = {"eos_token_id": named(e.generation_config)}
    stop_ids = named(e.stop_token_ids)
    ends = set(stop_ids)
    if not e.ignore_eos:
        for value in (named(e.config), named(e.generation_config)):
            ends |= set(value if isinstance(value, list) else [value] * (value is not None))
        if e.tokenizer is not None:
            ends |= set(reference.encode(e.tokenizer, add_special_tokens=False).ids)
    room = min(e.max_tokens, len(ids))
    params = {
        "max_tokens": e.max_tokens,
        "min_tokens": e.min_tokens,
        "stop": e.stop,
        "stop_token_ids": stop_ids,
        "ignore_eos": e.ignore_eos,
    }
    token_ids, _ = script.follow(params, sorted(ends))
    shown = [reference.decode(token_ids[:n], True) for n in range(len(token_ids) + 1)]
    certain = len(shown[e.min_tokens])  # what no stop string ends
    for n, text in enumerate(shown):
        if answer_stop(text, e.stop, certain)["matched"]:
            token_ids = token_ids[:n]
            break
    _agree_with_generate(folder, model, prompt, room, e, files, ends, token_ids)
    at_end_token = token_ids[-1] in ends
    text = shown[len(token_ids) - at_end_token]
    answer = answer_stop(text, e.stop, certain)
    reason = "stop" if at_end_token or answer["matched"] else "length"
    if (reason == "stop") != e.bites:
        raise LockstepError(f"{NAME}: {e} does not end as it was meant to")
    return {
        "stage": e.stage,
        "files": files,
        "params": params,
        "token_ids": token_ids,
        "text": answer["shown"],
        "finish_reason": reason,
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(token_ids),
            "total_tokens": len(prompt) + len(token_ids),
        },
    }


def _generated(model: Any, prompt: list[int], room: int, **how: Any) -> list[int]:
    given = {key: value for key, value in how.items() if value is not None}
    row = torch.tensor([prompt])
    mask = torch.ones_like(row)
    done = model.generate(
        row, attention_mask=mask, max_new_tokens=room, do_sample=False, pad_token_id=0, **given
    )
    answer: list[int] = done[0, len(prompt) :].tolist()
    return answer


def _agree_with_generate(
    folder: Path,
    model: Any,
    prompt: list[int],
    room: int,
    e: Ending,
    files: Mapping[str, Mapping[str, Any]],
    ends: set[int],
    token_ids: Sequence[int],
) -> None:
    """`generate` must end there too, from the model's own files and with its own stop criteria."""
    if e.min_tokens:  # where it chooses others, its logits are others; the script has seen to it
        return
    own = [part for part in (e.config, e.generation_config, e.tokenizer) if part is not None]
    if e.stop:
        how = {
            "stop_strings": list(e.stop),
            "tokenizer": AutoTokenizer.from_pretrained(str(folder)),
        }
        said = _generated(model, prompt, room, eos_token_id=sorted(ends) or None, **how)
        agrees = (said == token_ids) != e.across_prompt
    elif len(own) == 1 and not (e.tokenizer or e.stop_token_ids or e.ignore_eos):
        with tempfile.TemporaryDirectory() as twin:
            write_model(folder, Path(twin), files)
            agrees = _generated(load(Path(twin), torch.float64), prompt, room) == token_ids
    else:  # it reads one file, and knows no ids of a request beside it
        return
    if not agrees:
        raise LockstepError(f"{NAME}: generate does not end as the rule says: {e}")
