"""The golden format: a folder with the oracle's truth at every probe, its noise, and a manifest.

    config.json, model.safetensors    an ordinary Hugging Face checkpoint (or its name, for `lockstep fetch`,
                                      in the manifest)
    trace.safetensors                 truth by probe: tokens on the last axis but one, over the prompt
                                      and the teacher-forced decode steps; masked scores are -inf,
                                      ids of experts int64; of a large vocabulary's logits those of
                                      the tokens alone that the manifest names
    scales.safetensors                the scale of each row of a probe whose truth nearly cancels in
                                      some rows: how far the row moves when its inputs do
    noise.json                        relative noise by dtype, kind of run and probe
    manifest.json                     ids, schedule, versions, the command, sha256 of each file; how near
                                      the choices of tokens and experts were

Only the oracle writes goldens. Reading one checks every hash first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from conformance.candidate import Level, over_keys
from conformance.envelope import Envelope, Noise, half_step
from conformance.experts import is_expert_choice, router_of
from engine.errors import ModelFileError

FORMAT = 2
_KEYS = {
    "text": {"case", "command", "files", "versions"},
    "tokens": {"case", "command", "files", "versions"}
    | {"checkpoint", "checkpoint_sha256", "text_sha256"},
    "decisions": {"case", "command", "files", "versions"},
    "answers": {"case", "command", "files", "versions", "checkpoint", "checkpoint_sha256"},
    "beams": {"case", "command", "files", "versions", "checkpoint"},
    "model": {"case", "checkpoint", "command", "files", "versions"}
    | {"ids", "prompt_tokens", "greedy", "probes", "watch", "margins"},
}
_DERIVED = ("logprobs", "next_id")  # from the stored logits
REPOSITORY_GOLDENS = Path(__file__).resolve().parents[1] / "golden"


class Golden:
    """A golden of a model, opened and verified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        verify_hashes(folder, self.manifest)

    @property
    def case(self) -> str:
        return str(self.manifest["case"])

    @cached_property
    def ids(self) -> Tensor:
        """Prompt and teacher-forced tokens, int64 [T]."""
        return torch.tensor(self.manifest["ids"], dtype=torch.int64)

    @property
    def schedule(self) -> list[int]:
        """Tokens per step: the prompt, then one at a time."""
        prompt = int(self.manifest["prompt_tokens"])
        return [prompt] + [1] * (len(self.ids) - prompt)

    @property
    def whole_prompts(self) -> bool:
        """Whether the model's frequencies follow the tokens in view, so that chunks change more than bits."""
        return bool(self.manifest.get("whole_prompts", False))

    def schedule_in(self, chunk: int | None) -> list[int]:
        """The schedule with the prompt in chunks of that many tokens; None is the prompt whole.

        So it always is where the prompt in chunks would be another computation.
        """
        if self.whole_prompts:
            return self.schedule
        prompt, *single = self.schedule
        whole, rest = divmod(prompt, chunk or prompt)
        return [chunk or prompt] * whole + ([rest] if rest else []) + single

    @cached_property
    def trace(self) -> Mapping[str, Tensor]:
        """Truth by probe, as it is stored; the file is mapped, not read."""
        return self._tensors("trace.safetensors")

    @cached_property
    def scales(self) -> Mapping[str, Tensor]:
        """Scales of rows by probe, where they are not the truth's largest magnitudes."""
        return self._tensors("scales.safetensors")

    def load(self) -> None:
        """Opens the tensors now, before torch function modes of a candidate could meddle with that."""
        _ = self.trace, self.scales

    def _tensors(self, name: str) -> Mapping[str, Tensor]:
        path = self.folder / name
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ModelFileError(f"{path} cannot be read: {error}; {remake(self.case)}") from None

    @cached_property
    def _order(self) -> dict[str, int]:
        return {probe: n for n, probe in enumerate(self.manifest["probes"])}

    def order(self, probe: str) -> int:
        """The probe's place in the reference's order of execution."""
        return self._order.get(probe, len(self._order))

    def __contains__(self, probe: str) -> bool:
        return probe in self._order or probe in _DERIVED

    def watches(self, probe: str) -> bool:
        """Whether this golden speaks about `probe`; a compact one covers some layers only."""
        return probe in self or any(fnmatch(probe, pattern) for pattern in self.manifest["watch"])

    def probes(self, level: Level) -> list[str]:
        """What a candidate of `level` is expected to show."""
        if level.stands_for_all:
            return [level.stands_for_all]
        return [p for p in self._order if level.offers(p)]

    def truth(self, probe: str, start: int, stop: int) -> Tensor:
        """The truth of the tokens at positions start to stop, without a batch axis: float64, ids int64."""
        if probe == "logprobs":
            logits = self.truth("logits", start, stop)
            if self.vocabulary is None:
                return logits.log_softmax(-1)
            sums = torch.tensor(self.manifest["logsumexp"][start:stop], dtype=torch.float64)
            return logits - sums[:, None]
        if probe == "next_id":
            return self.tokens(self.truth("logits", stop - 1, stop).argmax(-1))
        whole = self.trace[probe]
        if is_expert_choice(probe):
            return whole[start:stop]
        if over_keys(probe):
            return whole[..., :stop, :].double()
        if probe.endswith((".scores", ".weights")):
            return whole[..., start:stop, :stop].double()
        return whole[..., start:stop, :].double()

    @cached_property
    def vocabulary(self) -> Tensor | None:
        """The tokens whose logits are kept, ascending; None where all are."""
        kept = self.manifest.get("vocabulary")
        return None if kept is None else torch.tensor(kept)

    def kept(self, probe: str, value: Tensor) -> Tensor:
        """The part of a probe's value [..., n] that the truth speaks of."""
        if self.vocabulary is None or probe not in ("logits", "logprobs"):
            return value
        if value.shape[-1:] != (self.manifest["vocabulary_size"],):
            return value
        return value[..., self.vocabulary.to(value.device)]

    def tokens(self, places: Tensor) -> Tensor:
        """The tokens whose logits stand at these places of a row of the truth."""
        return places if self.vocabulary is None else self.vocabulary[places]

    def place(self, token: int) -> int | None:
        """Where a token's logit stands in a row of the truth; None if it is not there."""
        if self.vocabulary is None:
            return token if 0 <= token < self.trace["logits"].shape[-1] else None
        found = (self.vocabulary == token).nonzero()
        return int(found) if len(found) else None

    def scale(self, probe: str, start: int, stop: int) -> Tensor | None:
        """The scales of those tokens' rows; None where the truth's largest magnitude is the scale."""
        if probe not in self.scales:
            return None
        first = 0 if over_keys(probe) else start
        return self.scales[probe][..., first:stop]

    def expert_margins(self, probe: str, start: int, stop: int) -> Tensor:
        """How far the router's logits were from another choice at those tokens: float64 [T].

        Relative to the scale of the row of logits, as errors are.
        """
        margins = self.manifest["expert_margins"][probe][start:stop]
        return torch.tensor(margins, dtype=torch.float64)

    def expert_ties(self, envelope: Envelope, shows: Callable[[str], bool]) -> frozenset[int]:
        """The tokens whose experts were chosen within the envelope, at probes that are not shown.

        Another set of experts is as right there. Where it is not shown nobody can say that it was
        chosen, nor hand on the reference's: the token's logits may then be others.
        """
        return frozenset(
            position
            for probe, margins in self.manifest.get("expert_margins", {}).items()
            if not shows(probe)
            for position, margin in enumerate(margins)
            if margin <= envelope.allowance(probe)
        )

    @cached_property
    def _noise(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads((self.folder / "noise.json").read_text())
        return table

    def lacks(self, dtype: str) -> str | None:
        """Why nothing can be judged in that dtype, where the golden was made without it."""
        if dtype in self._noise:
            return None
        return (
            f"{self.case} has no noise for {dtype} (it has {', '.join(self._noise)}); "
            f"{remake(self.case)}"
        )

    def envelope(self, run: str, dtype: torch.dtype) -> Envelope:
        """What a run ("lockstep" or "free") in `dtype` is allowed."""
        name = str(dtype).removeprefix("torch.")
        if lacking := self.lacks(name):
            raise ModelFileError(lacking)
        noise = {probe: Noise(*row) for probe, row in self._noise[name][run].items()}
        choices = [probe for probe in self._order if is_expert_choice(probe)]
        noise |= {probe: noise[router_of(probe)] for probe in choices}
        return Envelope(run, half_step(dtype), noise)


def remake(case: str) -> str:
    return f"make it again with: lockstep golden capture {case}"


def is_golden(folder: Path) -> bool:
    """Whether a folder looks like one golden, a damaged one included: its manifest is still to be read."""
    return any((folder / name).is_file() for name in ("manifest.json", "trace.safetensors"))


def holds_goldens(folder: Path) -> bool:
    """Whether it is a folder of goldens, and no model's."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return False
    return any(is_golden(inside) for inside in folder.iterdir())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a golden folder; missing or foreign ones are an error that says the command."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ModelFileError(f"{folder} holds no golden (no manifest.json); {remake(folder.name)}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        lacking = _KEYS[manifest["kind"]] - set(manifest)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path} is not a manifest: {error}; {remake(folder.name)}") from None
    if lacking:
        raise ModelFileError(
            f"{path} is not a manifest: it lacks {', '.join(sorted(lacking))}; {remake(folder.name)}"
        )
    if version != FORMAT:
        raise ModelFileError(
            f"{path} has format {version}, this version reads {FORMAT}; {remake(folder.name)}"
        )
    return manifest


def verify_hashes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Every file that the manifest lists is there, unaltered, and no other file is."""
    for name, digest in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ModelFileError(f"{path} is missing; {remake(manifest['case'])}")
        if sha256(path) != digest:
            raise ModelFileError(
                f"{path} was altered since the oracle wrote it; {remake(manifest['case'])}"
            )
    extra = {p.name for p in folder.iterdir()} - set(manifest["files"]) - {"manifest.json"}
    if extra:
        raise ModelFileError(
            f"{folder} holds {', '.join(sorted(extra))}, which its manifest does not list"
        )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Adds the hashes of all files in `folder` and writes the manifest last, in one move."""
    names = sorted(p.name for p in folder.iterdir() if p.name != "manifest.json")
    manifest = {"format": FORMAT, **manifest, "files": {n: sha256(folder / n) for n in names}}
    temporary = folder / ".manifest.json"
    temporary.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(folder / "manifest.json")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
