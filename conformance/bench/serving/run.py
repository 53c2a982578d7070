"""A whole run: a server for each form, and every rate after another."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from conformance.bench.forms import OURS, forms
from conformance.bench.result import environment
from conformance.bench.scenarios import prompt_ids
from conformance.bench.serving.load import QUICK, USUAL, Load, Step, drawn, play
from conformance.bench.serving.result import Figures, Served
from conformance.bench.serving.server import NAME, Server
from conformance.process import Say
from engine.device import check_device, check_dtype
from engine.errors import LockstepError, RequestError
from engine.models import resolve
from engine.weights import open_checkpoint


@dataclass(frozen=True)
class WantedServing:
    """What is asked of a run."""

    model: str
    forms: Sequence[str] = ("eager",)
    step_tokens: Sequence[int | None] = (None,)
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    load: Load = USUAL


def asked_for(
    model: str,
    forms: Sequence[str] | None,
    rates: str | None,
    step_tokens: str | None,
    quick: bool,
    dtype: str,
    device: str,
    threads: int | None,
) -> WantedServing:
    """What the options of the command ask for; RequestError for what makes no sense."""
    most, load = step_tokens_of(step_tokens), load_of(rates, quick)
    return WantedServing(model, forms or ["eager"], most, dtype, device, threads, load)


def load_of(rates: str | None, quick: bool) -> Load:
    """The usual load or a quick one, at the rates that are listed in a text, if they are."""
    load = QUICK if quick else USUAL
    if rates is None:
        return load
    try:
        listed = tuple(float(rate) for rate in rates.split(","))
    except ValueError:
        raise RequestError(f"rates are numbers, separated by commas, not {rates!r:.40}") from None
    if not all(0 < rate < math.inf for rate in listed):
        raise RequestError(f"a rate is above 0 requests a second, which {rates!r:.40} is not")
    return replace(load, rates=listed)


def step_tokens_of(listed: str | None) -> Sequence[int | None]:
    """Those that are listed in a text, each of which is timed; None, the server's own, where there is none."""
    if listed is None:
        return (None,)
    numbers = [number.strip() for number in listed.split(",")]
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise RequestError(
            f"tokens of a pass are whole numbers above 0, separated by commas, not {listed!r:.40}"
        )
    return [int(number) for number in numbers]


def run_serving(wanted: WantedServing, say: Say) -> Served:
    """Plays every rate in every form; RequestError, before anything is timed, for what cannot be."""
    check_dtype(wanted.dtype)
    check_device(wanted.device)
    chosen = forms(wanted.forms, wanted.dtype)
    if others := [form.name for form in chosen if form.module != OURS]:
        raise RequestError(f"{others[0]} is no server")
    model = resolve(wanted.model, progress=True)
    spec = open_checkpoint(model).spec
    longest = wanted.load.prompt[1] + wanted.load.answer[1]
    if longest > spec.context:
        raise RequestError(
            f"a request may take {longest} tokens and the model's context is {spec.context}"
        )
    ids = prompt_ids(model, spec.vocab_size)
    found: dict[str, list[Figures]] = {}
    for form, most in product(chosen, wanted.step_tokens):
        name = form.name if most is None else f"{form.name}, {most} tokens a pass"
        say(f"{name}: starting")
        with Server(model, form, most, wanted.device, wanted.threads) as server:
            found[name] = asyncio.run(_rates(server, name, wanted.load, ids, say))
    return Served(environment(wanted.device, wanted.threads), wanted.model, wanted.load, found)


async def _rates(
    server: Server, name: str, load: Load, ids: Sequence[int], say: Say
) -> list[Figures]:
    """A few requests at once that are not counted, and then the rates."""
    say(f"{name}: warming up")
    warm = Load(seconds=1.0, prompt=load.prompt, answer=load.answer)
    await _step(server, warm, 8.0, ids)
    found = []
    for rate in load.rates:
        say(f"{name}: {rate:g} requests a second for {load.seconds:g} s")
        found.append(Figures.of(await _step(server, load, rate, ids)))
    return found


async def _step(server: Server, load: Load, rate: float, ids: Sequence[int]) -> Step:
    step = Step(rate, load.seconds, [])
    await play(server.port, NAME, drawn(load, rate, ids), step, server.memory)
    if not any(one.tokens for one in step.asked):
        raise LockstepError(f"the server gave no token: {step.asked[0].outcome}")
    return step
