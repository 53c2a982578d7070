"""transformers' beam searches: answers and scores in float64, how near its choices were, how far float32 is off.

A tiny model is asked of random prompts: of each search the first is taken in which nothing is decided
by a rounding, and that bites: an end token ends an answer, where there are some, and it is as the case
demands. The end tokens are those that the answers without any have most often.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from conformance.cases.beams import RULES, Asked, BeamsCase
from conformance.cases.case import Case
from conformance.envelope import K
from conformance.golden import sha256, write_manifest
from conformance.oracle.capture import CLEAR
from conformance.oracle.model import exact, load
from conformance.oracle.text import Reference
from conformance.oracle.tiny import tiny_checkpoint
from engine.errors import LockstepError

Progress = Callable[[str], None]

PROMPT = 17  # random tokens, and up to 4 more
_TRIES = 500
_CLEARLY = 5e-4  # the margin of a random prompt's search
_NEVER = -1e8  # transformers' mark of what is not to be chosen is -1e9


# -- one search ------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Sum:
    """A total of log-probabilities, or a score, and by how much it moves if each of them moves by one."""

    value: float
    moves: float

    @classmethod
    def of(cls, totals: Tensor, length: int) -> list[Sum]:
        """Totals of so many tokens each."""
        return [cls(total, length) for total in totals.tolist()]

    def over(self, length: int, penalty: float) -> Sum:
        return Sum(self.value / length**penalty, self.moves / length**penalty)


@dataclass
class Watched:
    """What a search met: circumstances, and the margin of its nearest choice.

    A margin is by how much every log-probability would have to be off for the choice to be another one.
    """

    margin: float = math.inf
    met: set[str] = field(default_factory=set)

    def choice(self, one: Sum, other: Sum) -> None:
        """Something depended on which of these two is larger."""
        if min(one.value, other.value) > _NEVER:
            margin = abs(one.value - other.value) / (one.moves + other.moves)
            self.margin = min(self.margin, margin)

    def running(self, totals: Sequence[Sum], hits: Sequence[bool], beams: int) -> None:
        """Of candidates, the best first, those that do not end went on, up to `beams`."""
        going = [total for total, hit in zip(totals, hits, strict=True) if not hit]
        ended = [rank for rank, hit in enumerate(hits) if hit]
        for rank in ended:
            self.choice(totals[rank], totals[beams if rank < beams else beams - 1])
        if sum(rank < 2 * beams for rank in ended) > beams and going:
            self.met.add("more ends than beams")
        if not going:
            self.met.add("ends at the limit")
            return
        self.choice(going[:beams][-1], going[beams] if len(going) > beams else totals[-1])
        self.met |= {
            "ends within the beams" if r < beams else "ends beyond the beams" for r in ended
        }

    def ended(self, scores: Sequence[Sum], beams: int) -> None:
        """Of these answers' scores the best were kept, up to `beams`."""
        if len(scores) > beams:
            ranked = sorted(scores, reverse=True)
            self.choice(ranked[beams - 1], ranked[beams])
            self.met.add("an answer makes room")

    def hope(self, best: Sum, worst: Sum) -> None:
        """Whether the search went on depended on these; without a beam that runs it did not."""
        if best.value < _NEVER:
            return
        self.choice(best, worst)
        self.met.add("goes on in hope" if best > worst else "gives up hope")

    def order(self, scores: Sequence[Sum], n: int) -> None:
        """Of the answers, the best first, n were given."""
        for one, other in pairwise(scores[: n + 1]):
            self.choice(one, other)


def _scores(scores: Tensor, beam_indices: Tensor, penalty: float) -> list[Sum]:
    """Those of answers [N], whose lengths transformers' indices [N, T] show: they are -1 behind the end."""
    lengths = (beam_indices >= 0).sum(-1).tolist()
    return [
        Sum(score, length / length**penalty)
        for score, length in zip(scores.tolist(), lengths, strict=True)
    ]


@contextmanager
def watched(model: Any, early_stopping: Any) -> Iterator[Watched]:
    """Shows every choice of the one search inside. transformers' steps are private, and have no other door."""
    seen = Watched()
    names = (
        "_get_running_beams_for_next_iteration",
        "_update_finished_beams",
        "_check_early_stop_heuristic",
    )
    choose, update, check = (getattr(model, name) for name in names)
    ended: list[Sum] = []  # the answers after the last update

    def running(**given: Any) -> Any:
        hits = given["next_token_hits_stopping_criteria"][0].tolist()
        length = int((given["topk_running_beam_indices"][0, 0] >= 0).sum())
        seen.running(Sum.of(given["topk_log_probs"][0], length), hits, given["num_beams"])
        return choose(**given)

    def finished(**given: Any) -> Any:
        length, penalty = (
            given["cur_len"] + 1 - given["decoder_prompt_len"],
            given["length_penalty"],
        )
        hits = given["next_token_hits_stopping_criteria"][0] & given["top_num_beam_mask"]
        totals = Sum.of(given["topk_log_probs"][0][hits], length)
        seen.ended([*ended, *(total.over(length, penalty) for total in totals)], given["num_beams"])
        sequences, scores, indices, done = update(**given)
        ended[:] = _scores(scores[0][done[0]], indices[0][done[0]], penalty)
        return sequences, scores, indices, done

    def hope(**given: Any) -> Any:
        if bool(given["is_sent_finished"].all()):
            now, penalty = given["cur_len"] - given["decoder_prompt_len"], given["length_penalty"]
            longest = early_stopping == "never" and penalty > 0
            length = given["max_length"] - given["decoder_prompt_len"] if longest else now
            if early_stopping is True:
                seen.met.add("is full")
            else:
                best = Sum.of(given["running_beam_scores"][0, :1], now)[0]
                seen.hope(best.over(length, penalty), min(ended))
        return check(**given)

    for name, wrapped in zip(names, (running, finished, hope), strict=True):
        setattr(model, name, wrapped)
    try:
        yield seen
    finally:
        for name in names:
            delattr(model, name)


@dataclass(frozen=True)
class Found:
    """The answers of a search, the best first, with their scores, and what it met."""

    tokens: list[list[int]]
    scores: list[float]
    seen: Watched


def search(model: Any, prompt: Sequence[int], asked: Asked, ends: Sequence[int]) -> Found:
    """One beam search by `generate`, in the model's dtype; float64 is real."""
    early_stopping = asked.get("early_stopping", False)
    row = torch.tensor([list(prompt)])
    others = {"repetition_penalty": "repetition_penalty", "min_tokens": "min_new_tokens"}
    others |= {"no_repeat_ngram_size": "no_repeat_ngram_size", "bad_words_ids": "bad_words_ids"}
    with watched(model, early_stopping) as seen, exact(model), torch.no_grad():
        done = model.generate(
            row,
            attention_mask=torch.ones_like(row),
            do_sample=False,
            num_beams=asked["beams"],
            # One more than is given, where there is one: how near it was is to be seen.
            num_return_sequences=min(asked["n"] + 1, asked["beams"]),
            length_penalty=asked.get("length_penalty", 1.0),
            early_stopping=early_stopping,
            max_new_tokens=asked["max_tokens"],
            eos_token_id=list(ends) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **{name: asked[key] for key, name in others.items() if key in asked},
        )
    penalty = asked.get("length_penalty", 1.0)
    seen.order(_scores(done.sequences_scores, done.beam_indices, penalty), asked["n"])
    lengths = (done.beam_indices >= 0).sum(-1).tolist()
    tokens = [
        tokens[len(prompt) : len(prompt) + length]
        for tokens, length in zip(done.sequences.tolist(), lengths, strict=True)
    ]
    return Found(tokens[: asked["n"]], done.sequences_scores.tolist()[: asked["n"]], seen)


# -- a golden --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """One model as the truth in float64, and as it runs in float32."""

    truth: Any
    narrow: Any

    @classmethod
    def of(cls, path: Path) -> Models:
        models = cls(load(path, torch.float64), load(path, torch.float32))
        for model in (models.truth, models.narrow):
            model.generation_config.eos_token_id = None
            model.set_attn_implementation("eager")
        return models

    def kept(
        self, prompt: Sequence[int], asked: Asked, clearly: float = 0.0
    ) -> dict[str, Any] | None:
        """What a golden keeps of a search; None where its margin is under `clearly`.

        Where float32 finds other answers there is none. The end tokens are liked ones, unless some are
        given.
        """
        ends = asked["stop_token_ids"] if "stop_token_ids" in asked else self._liked(prompt, asked)
        found = search(self.truth, prompt, asked, ends)
        if found.seen.margin < clearly:
            return None
        noise = 0.0
        # What a class is marked to lack, `set_attn_implementation` refuses whatever the config says.
        for kind in ("eager", "sdpa") if self.narrow._supports_sdpa else ("eager",):
            self.narrow.set_attn_implementation(kind)
            rounded = search(self.narrow, prompt, asked, ends)
            if rounded.tokens != found.tokens:
                found.seen.margin = 0.0
            noise = max([noise, *_errors(rounded, found, asked)])
        return {
            "prompt": list(prompt),
            "params": {key: value for key, value in asked.items() if key not in RULES}
            | {"stop_token_ids": list(ends)},
            "answers": [
                {"token_ids": tokens, "score": score}
                for tokens, score in zip(found.tokens, found.scores, strict=True)
            ],
            "margin": found.seen.margin,
            "noise": noise,
            "met": sorted(found.seen.met),
        }

    def _liked(self, prompt: Sequence[int], asked: Asked) -> list[int]:
        """End tokens for a search: those that its answers without any have most often, behind the first."""
        if not asked["ends"]:
            return []
        wide = {**asked, "n": asked["beams"], "min_tokens": 0}
        answers = search(self.truth, prompt, wide, ()).tokens
        counts = Counter(token for answer in answers for token in answer[1:])
        return sorted(token for token, _ in counts.most_common(asked["ends"]))


def _errors(value: Found, truth: Found, asked: Asked) -> Iterator[float]:
    """By how much each score is off, a log-probability of its answer."""
    for tokens, one, other in zip(truth.tokens, value.scores, truth.scores, strict=True):
        yield abs(one - other) / len(tokens) ** (1 - asked.get("length_penalty", 1.0))


def _tiny_searches(case: BeamsCase, model: Case, folder: Path) -> Iterator[dict[str, Any]]:
    tiny_checkpoint(model, folder)
    models = Models.of(folder)
    for number, asked in enumerate(case.searches):
        generator = torch.Generator("cpu").manual_seed(1000 * model.seed + number)
        draw = partial(torch.randint, model.config["vocab_size"], generator=generator)
        prompts = (draw((PROMPT + number % 5,)).tolist() for _ in range(_TRIES))
        searches = (models.kept(prompt, asked, _CLEARLY) for prompt in prompts)
        found = next((kept for kept in searches if kept and _bites(models, asked, kept)), None)
        if found is None:
            raise LockstepError(f"{case.name}: no prompt has a clear search of {dict(asked)}")
        yield found


def _bites(models: Models, asked: Asked, kept: Mapping[str, Any]) -> bool:
    """Whether end tokens that were asked for end an answer, and a search is as its case demands.

    And whether float32 found the same answers.
    """
    ends = kept["params"]["stop_token_ids"]
    tokens = [answer["token_ids"] for answer in kept["answers"]]
    if kept["margin"] == 0 or (ends and not any(answer[-1] in ends for answer in tokens)):
        return False
    if "meets" in asked and asked["meets"] not in kept["met"]:
        return False
    other = {**asked, **asked.get("unlike", {})}
    return other == asked or search(models.truth, kept["prompt"], other, ends).tokens != tokens


def _real_searches(case: BeamsCase, path: Path, progress: Progress) -> Iterator[dict[str, Any]]:
    reference, models = Reference.of_gguf(path), Models.of(path)
    for text in case.texts:
        prompt = reference.encode(text).ids
        for asked in case.searches:
            progress(f"{text!r}, {dict(asked)}")
            yield {"text": text, **(models.kept(prompt, asked) or {})}


def capture_beams(case: BeamsCase, path: Path | None, out: Path, progress: Progress) -> None:
    """Writes the golden of a case (see `conformance.beams`); refused where a rounding decides something.

    What a real model chooses need only be beyond what is taken for a tie.
    """
    torch.set_num_threads(1)
    out.mkdir(parents=True)
    if isinstance(case.model, Case):
        searches = list(_tiny_searches(case, case.model, out))
        checkpoint, times = {"checkpoint": "."}, CLEAR
    else:
        assert path is not None
        searches = list(_real_searches(case, path, progress))
        checkpoint = {"checkpoint": case.model, "checkpoint_sha256": sha256(path)}
        times = 2 * K["free"]
    noise = max(kept.pop("noise") for kept in searches)
    for kept in searches:
        if kept["margin"] < times * noise:
            raise LockstepError(
                f"{case.name} is an unstable golden: a choice is {kept['margin']:.1e} from another, under "
                f"{times:.0f} times the noise {noise:.1e}; change {kept['params']}"
            )
    whole = {"noise": noise, "searches": searches}
    text = json.dumps(whole, ensure_ascii=False, indent=0)
    (out / "beams.json").write_text(text + "\n", encoding="utf-8")
    write_manifest(
        out,
        {
            "case": case.name,
            "kind": "beams",
            **checkpoint,
            "command": f"lockstep golden capture {case.name}",
            "versions": {
                "transformers": transformers.__version__,
                "torch": torch.__version__.partition("+")[0],
            },
        },
    )
