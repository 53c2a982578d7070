"""Makes goldens: the float64 truth at every probe, and the noise around it."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from conformance.candidate import over_keys
from conformance.cases import Case, RealCase
from conformance.cases.answers import BEST
from conformance.golden import Golden, sha256, write_manifest
from conformance.oracle.model import Oracle, follows_length, load
from conformance.oracle.noise import ENSEMBLE, ensemble, noise, quick, scales
from conformance.oracle.routing import expert_margins
from conformance.oracle.text import Reference
from conformance.oracle.tiny import tiny_checkpoint, tiny_ids
from conformance.reorder import Variant
from engine.errors import LockstepError

Progress = Callable[[str], None]

#: What a model of the user's own is run on: letters, digits, punctuation, another script.
LIVE_TEXT = "1 + 1 = 2; naïve café, 東京. The capital of France is"
LIVE_DECODE_TOKENS = 4
LIVE_RANDOM_TOKENS = 29

#: How far the greedy answer in a manifest goes.
ANSWER_TOKENS = 32

#: A choice of the reference (an argmax) must be clearer than this many times its noise.
CLEAR = 100.0


def _quiet(message: str) -> None:
    """No progress wanted."""


class _Recorder:
    """A tap that keeps the truth: tokens of successive steps side by side, the cache as it is last."""

    def __init__(self, watch: Sequence[str]) -> None:
        self.watch = watch
        self.parts: dict[str, list[Tensor]] = {}

    def __call__(self, probe: str, value: Tensor) -> Tensor:
        if any(fnmatch(probe, pattern) for pattern in self.watch):
            kept = value[0].clone()
            if over_keys(probe):
                self.parts[probe] = [kept]
            else:
                self.parts.setdefault(probe, []).append(kept)
        return value

    def trace(self, total: int) -> dict[str, Tensor]:
        return {probe: _join(probe, parts, total) for probe, parts in self.parts.items()}


def _join(probe: str, parts: list[Tensor], total: int) -> Tensor:
    if probe.endswith(".scores"):  # a step sees no later key: those places are masked
        parts = [
            torch.nn.functional.pad(p, (0, total - p.shape[-1]), value=-torch.inf) for p in parts
        ]
    if probe.endswith(".weights"):
        parts = [torch.nn.functional.pad(p, (0, total - p.shape[-1])) for p in parts]
    return torch.cat(parts, dim=-2).contiguous()


def truth(
    model: Any, prompt: Tensor, decode_tokens: int, watch: Sequence[str], answer_tokens: int
) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """Prefill, then greedy teacher-forced steps in float64: all ids fed, the trace, the greedy answer.

    The answer goes on where the trace ends, as weaker checks than this one want more tokens.
    """
    oracle = Oracle(model)
    recorder = _Recorder(watch)
    latest: list[Tensor] = []

    def last_alone(probe: str, value: Tensor) -> Tensor:
        if probe == "logits":
            latest[:] = [value[0, -1].clone()]
        return value

    def tap(probe: str, value: Tensor) -> Tensor:
        return recorder(probe, last_alone(probe, value))

    answer: list[Tensor] = []
    fresh = prompt
    oracle.begin(len(prompt) + answer_tokens)
    while len(answer) < answer_tokens:
        oracle.step(fresh, tap if len(answer) <= decode_tokens else last_alone)
        fresh = latest[0].argmax(-1, keepdim=True)
        answer.append(fresh)
    ids = torch.cat([prompt, *answer[:decode_tokens]])
    return ids, recorder.trace(len(ids)), torch.cat(answer).tolist()


@dataclass(frozen=True)
class Run:
    """What the reference is run on, and which of its probes are kept, in which dtypes' noise.

    `whole_prompts`: see `Golden.whole_prompts`; None asks the model. `answer_tokens`, more than
    `decode_tokens`, is how far the greedy answer goes.
    With `random_logits` only the best logits of each position and so many at random are kept.
    """

    checkpoint: Path
    prompt: Tensor
    decode_tokens: int
    watch: Sequence[str]
    dtypes: Sequence[str]
    kept_as: torch.dtype  # of the trace
    whole_prompts: bool | None = False
    ensemble: Sequence[Variant] = ENSEMBLE
    answer_tokens: int = ANSWER_TOKENS
    random_logits: int | None = None


def capture(
    run: Run,
    out: Path,
    about: dict[str, Any],
    progress: Progress = _quiet,
    words: Callable[[list[int], Any], dict[str, Any]] = lambda _ids, _model: {},
) -> Golden:
    """Writes trace, noise and manifest of a run into `out`, and gives the golden back.

    `words` adds to the manifest what the generated ids mean as text.
    """
    # One thread: summation order, and with it the last bit, must not depend on the machine's load.
    torch.set_num_threads(1)
    progress("truth in float64")
    model = load(run.checkpoint, torch.float64)
    ids, trace, answer = truth(model, run.prompt, run.decode_tokens, run.watch, run.answer_tokens)
    meaning = words(ids[len(run.prompt) :].tolist(), model)
    logits = trace["logits"]
    vocabulary = {} if run.random_logits is None else _vocabulary(logits, run.random_logits)
    if vocabulary:
        trace["logits"] = logits[:, vocabulary["vocabulary"]]
    kept = {p: t.to(run.kept_as) if t.is_floating_point() else t for p, t in trace.items()}
    save_file(kept, out / "trace.safetensors")
    manifest = {
        **about,
        "kind": "model",
        **meaning,
        "ids": ids.tolist(),
        "prompt_tokens": len(run.prompt),
        "greedy": answer,
        "watch": list(run.watch),
        "probes": list(trace),
        "truth": "float64, eager attention, cpu",
        "margins": _margins(logits),
        **vocabulary,
        "versions": {
            "transformers": transformers.__version__,
            "torch": torch.__version__.partition("+")[0],
            "tokenizers": tokenizers.__version__,
            "python": platform.python_version(),
        },
        "dtypes": list(run.dtypes),
        "ensemble": [],
    }
    follows = follows_length(model.config) if run.whole_prompts is None else run.whole_prompts
    if follows:
        manifest["whole_prompts"] = True
    save_file({}, out / "scales.safetensors")
    write_manifest(out, manifest)
    progress("scales")
    save_file(scales(Golden(out), model), out / "scales.safetensors")
    write_manifest(out, manifest)
    golden = Golden(out)
    variants = ensemble(golden, model, run.ensemble)
    manifest["ensemble"] = [variant.name for variant in variants]
    if margins := expert_margins(golden, model):
        manifest["expert_margins"] = margins
    del model
    write_manifest(out, manifest)
    golden = Golden(out)  # noise is measured against what was written, as an engine will be
    tables = {}
    for name in run.dtypes:
        dtype = getattr(torch, name)
        model = load(run.checkpoint, dtype)
        tables[name] = noise(golden, model, dtype, variants, progress)
        del model
    (out / "noise.json").write_text(json.dumps(tables, separators=(",", ":")) + "\n")
    write_manifest(out, manifest)
    return Golden(out)


def _vocabulary(logits: Tensor, random: int) -> dict[str, Any]:
    """What a manifest says where some logits [T, V] are kept: whose, and the logsumexp of all of them."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randint(logits.shape[-1], (random,), generator=generator)
    kept = torch.cat([drawn, logits.topk(BEST, dim=-1).indices.flatten()]).unique()
    return {
        "vocabulary": kept.tolist(),
        "vocabulary_size": logits.shape[-1],
        "logsumexp": logits.logsumexp(-1).tolist(),
    }


def _margins(logits: Tensor) -> list[float]:
    """Gap of the two best logits at each position, relative to the row's scale."""
    best = logits.topk(2, dim=-1).values
    gaps = (best[:, 0] - best[:, 1]) / logits.abs().amax(-1)
    return [float(f"{gap:.3e}") for gap in gaps.tolist()]


def capture_case(case: Case, out: Path, progress: Progress) -> None:
    """A tiny case's whole golden folder; refused where a choice of the reference is a near-tie."""
    out.mkdir(parents=True)
    tiny_checkpoint(case, out)
    golden = capture(
        Run(
            checkpoint=out,
            prompt=tiny_ids(case),
            decode_tokens=case.decode_tokens,
            watch=case.watch,
            dtypes=("float32", "bfloat16", "float16"),
            kept_as=getattr(torch, case.kept_as),
            whole_prompts=case.whole_prompts,
        ),
        out,
        about={
            "case": case.name,
            "family": case.family,
            "seed": case.seed,
            "checkpoint": ".",
            "command": f"lockstep golden capture {case.name}",
        },
        progress=progress,
    )
    refuse_near_ties(golden)


def refuse_near_ties(golden: Golden) -> None:
    """LockstepError where the choice of a token or of experts is hardly clearer than float32's noise."""
    noise_of = golden.envelope("free", torch.float32).noise
    choices = {"logits": golden.manifest["margins"], **golden.manifest.get("expert_margins", {})}
    for probe, margins in choices.items():
        closest, largest = min(margins), noise_of[probe].largest
        if closest < CLEAR * largest:
            raise LockstepError(
                f"{golden.case} is an unstable golden: its closest choice at {probe} has a margin of "
                f"{closest:.1e}, under {CLEAR:.0f} times the noise {largest:.1e}; change the seed"
            )


def capture_quick(case: Case, out: Path, chunk: int | None) -> Golden:
    """A tiny case's golden for trials in float32 on a CPU, with its checkpoint, in a fraction of a second.

    Prompts are to be fed whole, or in the chunks that its noise is measured with. The choices of the
    reference may be near-ties, which a trial judges by their margins.
    """
    tiny_checkpoint(case, out)
    return capture_there(case, out, chunk)


def capture_there(case: Case, out: Path, chunk: int | None, dtype: str = "float32") -> Golden:
    """The same of the checkpoint of the case's sizes that is in `out`, for trials in `dtype`."""
    run = Run(
        checkpoint=out,
        prompt=tiny_ids(case),
        decode_tokens=case.decode_tokens,
        watch=case.watch,
        dtypes=(dtype,),
        kept_as=getattr(torch, case.kept_as),
        whole_prompts=case.whole_prompts,
        ensemble=quick(chunk),
        answer_tokens=case.decode_tokens + 1,
    )
    about = {"case": case.name, "family": case.family, "seed": case.seed, "checkpoint": "."}
    return capture(run, out, about | {"command": "this test"})


def capture_real(case: RealCase, model: Path, out: Path, progress: Progress) -> None:
    """A real model's golden: the probes that the case watches, in float32, without the checkpoint."""
    out.mkdir(parents=True)
    about = {
        "case": case.name,
        "checkpoint": case.model,
        "checkpoint_sha256": sha256(model),
        "command": f"lockstep golden capture {case.name}",
    }
    run = partial(
        Run,
        model,
        decode_tokens=case.decode_tokens,
        watch=case.watch,
        dtypes=("float32", "bfloat16"),
        kept_as=torch.float32,
        whole_prompts=None,
        random_logits=case.random_logits,
    )
    _capture_text(model, case.text, run, out, about, progress)


def capture_live(name: str, model: Path, out: Path, dtype: str, progress: Progress) -> None:
    """A golden of any model for one check in one dtype, every probe of it."""
    about = {"case": name, "checkpoint": str(model), "command": f"lockstep check {name}"}
    run = partial(
        Run,
        model,
        decode_tokens=LIVE_DECODE_TOKENS,
        watch=("*",),
        dtypes=(dtype,),
        kept_as=torch.float32,
        whole_prompts=None,
        answer_tokens=LIVE_DECODE_TOKENS + 1,  # no weaker check will ask for more
    )
    _capture_text(model, LIVE_TEXT, run, out, about, progress)


def _capture_text(
    model: Path,
    text: str,
    run: Callable[..., Run],
    out: Path,
    about: dict[str, Any],
    progress: Progress,
) -> None:
    """Prompt and continuation by the model's own tokenizer; random ids where it has none."""
    if model.suffix == ".gguf":
        reference = Reference.of_gguf(model)
    elif (model / "tokenizer.json").is_file():
        reference = Reference.load(model)
    else:
        config = AutoConfig.from_pretrained(model, local_files_only=True)
        generator = torch.Generator("cpu").manual_seed(0)
        prompt = torch.randint(config.vocab_size, (LIVE_RANDOM_TOKENS,), generator=generator)
        capture(run(prompt=prompt), out, about, progress)
        return

    def words(generated: list[int], loaded: Any) -> dict[str, Any]:
        ends = loaded.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        stop = next((n for n, token in enumerate(generated) if token in ends), len(generated))
        answer = reference.decode(generated[:stop], skip_special_tokens=True)
        return {"text": text, "continuation": answer}

    prompt = torch.tensor(reference.encode(text).ids, dtype=torch.int64)
    capture(run(prompt=prompt), out, about, progress, words)
