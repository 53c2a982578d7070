"""This engine as a subject of timing, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn

from conformance.bench.stages import Recorder, StageFigures, staged, text_stage, watched
from conformance.bench.timed import Ids, Timed
from conformance.bench.worker import Questions, serve
from conformance.process import Say
from engine import Engine, SamplingParams
from engine.decoder import Block, Decoder


class Ours:
    """The engine, loaded with `options` of `Engine.load`."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.model, self.options = model, options
        self.load()
        self.device = self.engine.device

    def load(self) -> None:
        self.engine = Engine.load(self.model, **self.options)

    def answer(self, prompts: Sequence[Ids], n: int) -> list[Ids]:
        done = self.engine.generate([list(prompt) for prompt in prompts], _params(n))
        return [answer.token_ids for answer in done]

    def stream(self, prompt: Ids, n: int, came: Callable[[], None]) -> None:
        for _ in self.engine.stream(prompt, _params(n)):
            came()

    def read(self, prompt: Ids) -> int:
        return self.engine.generate(prompt, _params(1)).token_ids[0]

    def speak(self, text: str) -> str:
        return next(self.engine.stream(text, _params(16))).text

    def about(self) -> dict[str, Any]:
        return {"weights": step_bytes(self.engine.decoder)}

    @torch.inference_mode()
    def stages(self, text: str) -> dict[str, StageFigures]:
        engine, decoder = self.engine, self.engine.decoder
        _, load = text_stage(self.load)
        ids, tokenize = text_stage(lambda: engine.encode(text))
        _, detokenize = text_stage(lambda: engine.tokenizer.decode(ids))
        blocks = cast("list[Block]", list(decoder.layers))

        def play(recorder: Recorder) -> None:
            cache = engine.new_cache(len(ids) + 1, 1, engine.step_tokens)
            for kind in ("prompt", "step"):
                modules: dict[str, Iterable[nn.Module]] = {
                    "embedding": [decoder.embed],
                    "attention": [layer.attn for layer in blocks],
                    "cache": cache.layers,
                    "feed-forward": [layer.mlp for layer in blocks],
                    "head": [decoder.logits],
                    "whole pass": [decoder],
                }
                named = {f"{kind}.{stage}": seen for stage, seen in modules.items()}
                with watched(recorder, named):
                    if kind == "prompt":
                        engine.prefill(ids, cache)
                    else:
                        engine.decode(ids[-1], cache)

        weights = sum(held.nbytes for held in (*decoder.parameters(), *decoder.buffers()))
        return {
            "load": StageFigures(load.seconds, weights),
            "tokenize": tokenize,
            **staged(play, self.device, len(decoder.layers)),
            "detokenize": detokenize,
        }


def step_bytes(decoder: Decoder) -> int:
    """Bytes of the weights that a step reads: all but an embedding of which it reads one row."""
    head = decoder.logits.weight
    read = [p for p in decoder.parameters() if p is not decoder.embed.weight or p is head]
    return sum(
        tensor.nbytes for tensor in (*read, *decoder.buffers())
    )  # quantised ones are buffers


def _params(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=n, ignore_eos=True)


def start(settings: dict[str, Any], say: Say) -> Questions:
    if threads := settings["threads"]:
        torch.set_num_threads(threads)
    say("loading")
    options = {"device": settings["device"], "dtype": settings["dtype"], **settings["options"]}
    made = Timed(lambda: Ours(settings["model"], options), torch.device(settings["device"]))
    return made.questions


if __name__ == "__main__":
    serve(start)
