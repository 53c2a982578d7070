"""Reads the tokenizer in a GGUF file's metadata into stages.

GGUF names the split rule instead of spelling it out. The rules here are those of the models'
own tokenizer.json files, which the names stand for; an unknown name is refused.
Source: ggml's gguf specification, section tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import ModelFileError
from engine.tokenizer.added import AddedToken
from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.decode.byte_level import ByteLevel
from engine.tokenizer.decode.sequence import StepDecoder
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.normalize.forms import UnicodeForm
from engine.tokenizer.post import PostProcessor, Specials, Template, Text
from engine.tokenizer.split.pattern import GPT2_WORDS, Split
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.step import Rewriting
from engine.tokenizer.stages import Stages, Surroundings

T = TypeVar("T")

# Words of cl100k (tiktoken) as Llama-3 has them; Qwen2 takes digits one by one.
_CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_UNCHANGED = Chain()


@dataclass(frozen=True)
class _Rule:
    """What the name of a split rule stands for."""

    patterns: tuple[str, ...]
    normalizer: Rewrite = _UNCHANGED
    ignore_merges: bool = False
    add_bos: bool = False


_RULES = {
    "gpt-2": _Rule((GPT2_WORDS,)),
    "smollm": _Rule((r"\p{N}|\P{N}+", GPT2_WORDS)),
    "llama-bpe": _Rule(
        (_CL100K_WORDS.format(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True
    ),
    "qwen2": _Rule((_CL100K_WORDS.format(digits=r"\p{N}"),), normalizer=UnicodeForm("NFC")),
}

# tokenizer.ggml.token_type
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the specification
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_tokenizer(path: Path) -> tuple[Stages, Surroundings]:
    """Return the tokenizer of a GGUF file."""
    from engine.gguf import open_gguf

    return stages_from_metadata(open_gguf(path).metadata, str(path))


def stages_from_metadata(metadata: Mapping[str, Any], source: str) -> tuple[Stages, Surroundings]:
    """Return the stages that GGUF metadata describe; `source` is for errors."""
    return _Reader(metadata, source).read()


class _Reader:
    """Reads the metadata of one file."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self._source = source
        if self._ggml("model") != "gpt2":
            raise self._error(
                f"model {self._ggml('model')!r} is not supported; 'gpt2' (byte-level BPE) is"
            )
        name = self._ggml("pre")
        if not isinstance(name, str) or name not in _RULES:
            raise self._error(
                f"pre {name!r:.60} is not a split rule known here: {', '.join(_RULES)}"
            )
        self._rule = _RULES[name]
        self._tokens = self._list("tokens", str)
        self._kinds = [_NORMAL] * len(self._tokens)
        if self._ggml("token_type") is not None:
            self._kinds = self._list("token_type", int)
        if len(self._kinds) != len(self._tokens):
            raise self._error("token_type is damaged: it must have as many items as tokens")

    def read(self) -> tuple[Stages, Surroundings]:
        known = list(enumerate(zip(self._tokens, self._kinds, strict=True)))
        stages = Stages(
            added_tokens=tuple(
                AddedToken(id=i, content=token, special=kind == _CONTROL, normalized=False)
                for i, (token, kind) in known
                if token and kind in (_CONTROL, _USER_DEFINED)
            ),
            normalizer=self._rule.normalizer,
            splitter=Splitter([*map(Split, self._rule.patterns), Rewriting(SpellBytes())]),
            model=self._model({token: i for i, (token, kind) in known if kind != _UNUSED}),
            post_processor=PostProcessor(
                [
                    self._template(
                        self._end("bos_token_id", "add_bos_token", self._rule.add_bos),
                        self._end("eos_token_id", "add_eos_token", False),
                    )
                ]
            ),
            decoder=StepDecoder([ByteLevel()]),
        )
        ids = {name: self._id(key) for name, key in _SPECIAL_TOKENS.items()}
        template = self._metadata.get("tokenizer.chat_template")
        surroundings = Surroundings(
            special_tokens={name: self._tokens[i] for name, i in ids.items() if i is not None},
            chat_templates={"default": template} if isinstance(template, str) else {},
            eos_ids=tuple(
                dict.fromkeys(i for key in _END_TOKENS if (i := self._id(key)) is not None)
            ),
        )
        return stages, surroundings

    def _model(self, vocab: Mapping[str, int]) -> BytePairModel:
        try:
            merges = [_merge(line) for line in self._list("merges", str)]
            return BytePairModel(vocab, merges, self._rule.ignore_merges)
        except (KeyError, ValueError) as error:
            raise self._error(f"merges are damaged ({error})") from error

    @staticmethod
    def _template(before: tuple[Specials, ...], after: tuple[Specials, ...]) -> Template:
        """Return the template that puts the same tokens around each text."""
        return Template(
            (*before, Text(0), *after), (*before, Text(0), *after, *before, Text(1), *after)
        )

    def _end(self, key: str, switch: str, default: bool) -> tuple[Specials, ...]:
        """Return the token that stands at one end of every text, if the file wants one."""
        token_id = self._id(key)
        if token_id is None or not self._metadata.get(f"tokenizer.ggml.{switch}", default):
            return ()
        return (Specials((token_id,), (self._tokens[token_id],)),)

    def _id(self, key: str) -> int | None:
        token_id = self._ggml(key)
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self._tokens):
            raise self._error(f"{key} {token_id!r:.60} is none of the {len(self._tokens)} tokens")
        return token_id

    def _list(self, key: str, of: type[T]) -> list[T]:
        values = self._ggml(key)
        if not isinstance(values, list) or not all(isinstance(value, of) for value in values):
            raise self._error(f"{key} is damaged or missing: it must be a list of {of.__name__}")
        return values

    def _ggml(self, key: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}")

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._source}: tokenizer.ggml.{problem}")


def _merge(line: str) -> tuple[str, str]:
    left, right = line.split(" ")
    return left, right
