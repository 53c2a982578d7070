"""Groups of options that commands have in common: a dataclass whose fields are the options.

A command names a group as the type of a parameter, and gets the group filled in; `command` tells typer
of its fields in the parameter's place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, get_args, get_type_hints

from typer import Option

from engine.cli.app import app
from engine.cli.shared import parse_ids, unicode
from engine.errors import RequestError

if TYPE_CHECKING:
    from engine import SamplingParams


class Group(Protocol):
    """Options that say something of an answer."""

    def asked(self) -> dict[str, Any]:
        """The fields of SamplingParams that they are, checked and in the types of those."""


@dataclass(frozen=True)
class Choosing:
    """How tokens are chosen, and when to stop."""

    panel: ClassVar = "Choosing and stopping"

    max_tokens: Annotated[int, Option(help="Stop after this many tokens.")] = 64
    min_tokens: Annotated[int, Option(help="Do not stop before this many tokens.")] = 0
    temperature: Annotated[float, Option(help="0 takes the most likely token.")] = 0.0
    top_k: Annotated[int | None, Option(help="Draw from the k most likely tokens.")] = None
    top_p: Annotated[float | None, Option(help="Draw from the nucleus of this mass.")] = None
    min_p: Annotated[
        float | None, Option(help="Draw from tokens this likely, relative to the best.")
    ] = None
    typical_p: Annotated[
        float | None, Option(help="Draw from the most typical tokens of this mass.")
    ] = None
    epsilon_cutoff: Annotated[
        float | None, Option(help="Draw from tokens at least this likely.")
    ] = None
    eta_cutoff: Annotated[
        float | None, Option(help="The same, with less where the choice is wide open.")
    ] = None
    seed: Annotated[int | None, Option(help="Makes the draws repeatable.")] = None
    repetition_penalty: Annotated[
        float, Option(help="Above 1, what came in prompt or answer comes less.")
    ] = 1.0
    presence_penalty: Annotated[
        float, Option(help="Taken from the logit of what came in the answer.")
    ] = 0.0
    frequency_penalty: Annotated[float, Option(help="The same, for each time that it came.")] = 0.0
    no_repeat_ngram_size: Annotated[
        int, Option(help="Let no tokens come twice in a row of this many; 0 allows it.")
    ] = 0
    logit_bias: Annotated[
        list[str] | None,
        Option(metavar="ID=VALUE", help="Add this to a token's logit; may be repeated."),
    ] = None
    stop: Annotated[list[str] | None, Option(help="Stop before this text; may be repeated.")] = None
    stop_token_id: Annotated[
        list[int] | None, Option(help="Stop at this token; may be repeated.")
    ] = None
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Go on after the model's own end tokens.")
    ] = False

    def asked(self) -> dict[str, Any]:
        named = dict(vars(self))
        return {
            "logit_bias": dict(map(_bias, named.pop("logit_bias") or ())),
            "stop": tuple(map(unicode, named.pop("stop") or ())),
            "stop_token_ids": tuple(named.pop("stop_token_id") or ()),
            **named,
        }


@dataclass(frozen=True)
class LongChoosing(Choosing):
    """With room for a turn of a conversation."""

    max_tokens: Annotated[int, Option(help="Stop after this many tokens.")] = 512


@dataclass(frozen=True)
class Answers:
    """How many answers there are, and what is recorded of them."""

    panel: ClassVar = "Answers"

    n: Annotated[int, Option("-n", help="Give this many answers.")] = 1
    best_of: Annotated[
        int | None, Option(help="Make this many answers, and give the likeliest.")
    ] = None
    logprobs: Annotated[
        int | None,
        Option(help="Record log-probabilities: each token's and this many best ones' (--json)."),
    ] = None
    logprobs_mode: Annotated[
        str, Option(help="raw: the model's own; processed: after all options.")
    ] = "raw"
    prompt_logprobs: Annotated[
        int | None, Option(help="The same for the prompt's tokens (--json).")
    ] = None

    def asked(self) -> dict[str, Any]:
        return dict(vars(self))


def sampling_params(*groups: Group) -> SamplingParams:
    """All that was asked for; RequestError where it makes no sense."""
    from engine import SamplingParams

    return SamplingParams(
        **{name: value for group in groups for name, value in group.asked().items()}
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        (number,) = parse_ids(token)
        return number, float(value)
    except (RequestError, ValueError):
        raise RequestError(
            f"--logit-bias wants ID=VALUE, such as 11=-5, and got {text!r}"
        ) from None


# -- what typer is told ----------------------------------------------------------------------------

_BY_NAME = Parameter.KEYWORD_ONLY


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes it a command whose groups of options typer sees as the options that they are."""
    hints = get_type_hints(function)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(function)
    def collecting(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    parameters: list[Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = groups.get(parameter.name)
        parameters += [parameter] if group is None else _options(group)
    parameters = [parameter.replace(kind=_BY_NAME) for parameter in parameters]
    collecting.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    collecting.__annotations__ = {each.name: each.annotation for each in parameters}
    return app.command()(collecting)


def _options(group: Any) -> list[Parameter]:
    """The group's fields, each as a parameter of a command; --help shows them together."""
    hints = get_type_hints(group, include_extras=True)
    for _, option in map(get_args, (hints[field.name] for field in fields(group))):
        option.rich_help_panel = group.panel
    return [
        Parameter(field.name, _BY_NAME, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
