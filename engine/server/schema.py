"""What a request may ask, in the names of the OpenAI API, and what it becomes: SamplingParams.

A field that is null counts as left out. One that is not here is refused by name, for it would change the
answer; those of OpenAI's that change nothing are taken and have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from engine.errors import RequestError
from engine.generate.structured import Choice, Grammar, JsonObject, JsonSchema, Regex, Structure

MOST_ANSWERS = 128  # to one prompt
MOST_STOPS = 16
MOST_LOGPROBS = 20
#: Of a schema, a grammar or a pattern. What the library takes to read one can grow with the square of its
#: length: of this length it took 3 s at most in all that was tried.
MOST_CHARACTERS = 50_000

TokenId = Annotated[int, Field(ge=0)]
Top = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
Ids = Annotated[list[TokenId], Field(fail_fast=True)]


def one_of_the_forms(what: str) -> WrapValidator:
    """Says what a value of several types must be, where it is none of them."""

    def check(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
        try:
            return known(value)
        except ValidationError:
            raise ValueError(f"it must be {what}") from None

    return WrapValidator(check)


def wrong(field: str, what: str) -> PydanticCustomError:
    """A fault of a field that shows beside others: the sentence is its name and `what`."""
    return PydanticCustomError("wrong", "{what}", {"field": field, "what": what})


class Strict(BaseModel):
    """An object of a request: nothing unknown, and no value that has to be turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return {name: value for name, value in given.items() if value is not None}
        return given


Stops = Annotated[
    str | Annotated[list[str], Field(max_length=MOST_STOPS)],
    one_of_the_forms(f"a text or a list of at most {MOST_STOPS} texts"),
]


class Harmless(Strict):
    """Fields of OpenAI's service that say nothing about the answer."""

    user: str = ""
    metadata: dict[str, str] = {}
    store: bool = False
    service_tier: str = "auto"
    safety_identifier: str = ""
    prompt_cache_key: str = ""
    prompt_cache_retention: str = ""


class StreamOptions(Strict):
    include_obfuscation: bool = False  # nothing is added to hide lengths


class ChunkOptions(StreamOptions):
    include_usage: bool = False


class Sampling(Harmless):
    """How tokens are chosen; the model is the one that is served, by its name or by none."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    # Extensions, as other servers name them
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)
    min_tokens: int = Field(0, ge=0)
    stop_token_ids: list[TokenId] = []
    ignore_eos: bool = False
    guided_regex: str | None = Field(None, max_length=MOST_CHARACTERS)
    guided_choice: list[str] | None = Field(None, max_length=1000)
    guided_grammar: str | None = Field(None, max_length=MOST_CHARACTERS)

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "is for streams: set stream to true, or leave it out")
        return self

    @property
    def structure(self) -> Structure | None:
        """What the answer has to look like."""
        choice = self.guided_choice
        if choice is not None and sum(map(len, choice)) > MOST_CHARACTERS:
            raise RequestError(f"guided_choice can have at most {MOST_CHARACTERS:,} characters")
        return one_of(
            None if self.guided_regex is None else Regex(self.guided_regex),
            None if choice is None else Choice(choice),
            None if self.guided_grammar is None else Grammar(self.guided_grammar),
        )

    def choosing(self) -> dict[str, Any]:
        """The fields of SamplingParams that they are."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "structured": self.structure,
        }


class Generating(Sampling):
    """What completions and chats have in common."""

    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stops = []
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    stream_options: ChunkOptions | None = None
    # Extensions
    include_stop_str_in_output: bool = False
    prompt_logprobs: Top | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def choosing(self) -> dict[str, Any]:
        return {
            **super().choosing(),
            "n": self.n,
            # Seeds may be negative there; those that are not are the library's.
            "seed": None if self.seed is None else self.seed % 2**63,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": {_token(token): bias for token, bias in self.logit_bias.items()},
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "prompt_logprobs": self.prompt_logprobs,
        }


class NamedSchema(Strict):
    name: str = ""
    description: str = ""
    strict: bool = True  # an answer is always held to it
    schema_: dict[str, Any] | bool = Field(True, alias="schema")


def one_of(*structures: Structure | None) -> Structure | None:
    """The one that was asked for; RequestError where it is more than one."""
    asked: Sequence[Structure] = [each for each in structures if each is not None]
    if len(asked) > 1:
        raise RequestError(
            "an answer can be held to one structure: give one of response_format, a tool_choice that demands "
            "a call, guided_regex, guided_choice and guided_grammar"
        )
    return asked[0] if asked else None


def held_to(kind: str, schema: NamedSchema | None) -> Structure | None:
    """The structure that a response format asks for."""
    if kind == "json_object":
        return JsonObject()
    if kind == "json_schema":
        if schema is None:
            raise RequestError("a response format of type json_schema needs the schema")
        return json_schema(schema.schema_)
    return None


def json_schema(schema: Mapping[str, Any] | bool) -> JsonSchema:
    """RequestError where an answer cannot be held to it, or where that would take too long to find out."""
    if len(json.dumps(schema)) > MOST_CHARACTERS:
        raise RequestError(f"a JSON schema can have at most {MOST_CHARACTERS:,} characters here")
    return JsonSchema(schema)


def _token(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RequestError(f"logit_bias maps token ids to numbers, and {text!r:.40} is no token id")
    return int(text)
