"""Reads the tokenizer in a GGUF file's metadata into the object of a tokenizer.json.

Of the kinds of tokenizer.ggml.model, "gpt2" is byte-level BPE, "llama" SentencePiece's BPE, "t5"
its Unigram, and "gemma4" BPE with merges over SentencePiece's spelling.
Source: ggml's gguf specification, section tokenizer; llama.cpp for what a file leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import ModelFileError
from engine.tokenizer.formats.gguf_rules import RULES
from engine.tokenizer.formats.parts import (
    SPACE,
    Definition,
    added_token,
    around,
    byte_level,
    byte_pairs,
)
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.sentencepiece import (
    decoder,
    definition_from_model,
    space_normalizers,
    stages_from_model,
)
from engine.tokenizer.formats.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Pieces,
    SentencePieceModel,
    Spaces,
)
from engine.tokenizer.stages import Stages, Surroundings

T = TypeVar("T")

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the specification
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What llama.cpp takes where a file of SentencePiece's names no ids.
_DEFAULT_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def read_gguf_tokenizer(path: Path) -> tuple[Stages, Surroundings]:
    """Return the tokenizer of a GGUF file."""
    from engine.gguf import open_gguf

    return stages_from_metadata(open_gguf(path).metadata, str(path))


def stages_from_metadata(metadata: Mapping[str, Any], source: str) -> tuple[Stages, Surroundings]:
    """Return the stages that GGUF metadata describe; `source` is for errors."""
    reader = _Reader(metadata, source)
    return reader.stages(), reader.surroundings()


def definition_from_metadata(metadata: Mapping[str, Any], source: str) -> Definition:
    """Return the tokenizer that GGUF metadata describe; `source` is for errors."""
    return _Reader(metadata, source).definition()


class _Reader:
    """Reads the metadata of one file."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self._source = source
        self._kind = self._ggml("model")
        if self._kind not in ("gpt2", "llama", "t5", "gemma4"):
            raise self._error(
                f"model {self._kind!r:.60} is not supported; 'gpt2', 'llama', 't5' and 'gemma4' are"
            )
        self._tokens = self._list("tokens", str)
        self._kinds = [NORMAL] * len(self._tokens)
        if self._ggml("token_type") is not None:
            self._kinds = self._list("token_type", int)
        if len(self._kinds) != len(self._tokens):
            raise self._error("token_type is damaged: it must have as many items as tokens")

    def stages(self) -> Stages:
        definition = self.definition()
        if self._kind == "t5":
            return stages_from_model(self._sentencepiece(), definition, self._source)
        try:
            return stages_of(definition, self._source)
        except KeyError as error:
            raise self._error(f"merges are damaged ({error})") from error

    def definition(self) -> Definition:
        match self._kind:
            case "gpt2":
                return self._gpt2()
            case "gemma4":
                return self._gemma4()
            case "t5":
                return self._t5()
        return self._llama()

    def surroundings(self) -> Surroundings:
        ids = {name: self._id(key) for name, key in _SPECIAL_TOKENS.items()}
        template = self._metadata.get("tokenizer.chat_template")
        return Surroundings(
            special_tokens={name: self._tokens[i] for name, i in ids.items() if i is not None},
            chat_templates={"default": template} if isinstance(template, str) else {},
            eos_ids=tuple(
                dict.fromkeys(i for key in _END_TOKENS if (i := self._id(key)) is not None)
            ),
        )

    # -- one kind of tokenizer each ----------------------------------------------------------------

    def _gpt2(self) -> Definition:
        name = self._ggml("pre")
        if not isinstance(name, str) or name not in RULES:
            raise self._error(
                f"pre {name!r:.60} is not a split rule known here: {', '.join(RULES)}"
            )
        rule = RULES[name]
        return byte_level(
            byte_pairs(self._vocab(), self._merges(), ignore_merges=rule.ignore_merges),
            rule.splits,
            form=rule.form,
            added_tokens=self._added_tokens(),
            post_processor=self._around(rule.add_bos, False),
        )

    def _gemma4(self) -> Definition:
        """Return Gemma 4's: as Gemma 3's tokenizer.json, and BOS whatever the file says."""
        bos, unknown = self._id("bos_token_id"), self._id("unknown_token_id")
        return {
            **byte_level({}, []),
            "added_tokens": self._added_tokens(),
            "normalizer": {
                "type": "Sequence",
                "normalizers": space_normalizers(
                    Spaces(add_dummy_prefix=False, remove_extra=False)
                ),
            },
            "post_processor": around([] if bos is None else [(bos, self._tokens[bos])]),
            "decoder": decoder(byte_fallback=True, strip=False),
            "model": byte_pairs(
                self._vocab(),
                self._merges(),
                unk_token=None if unknown is None else self._tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            ),
        }

    def _llama(self) -> Definition:
        """Return SentencePiece's BPE as transformers has it: user-defined tokens are added ones.

        Their spaces are written as such in GGUF. Runs of nothing else are pieces that merge before
        all others, the longest first, as in Gemma's tokenizer.json.
        """
        model = self._sentencepiece()
        runs = [text for _, text in model.pieces.of(USER_DEFINED) if not text.strip(SPACE)]
        first = sorted(runs, key=len, reverse=True)
        definition = definition_from_model(model, self._source, first=first)
        return {**definition, "post_processor": self._around(True)}

    def _t5(self) -> Definition:
        definition = definition_from_model(self._sentencepiece(), self._source)
        return {**definition, "post_processor": self._around(False, True)}

    def _sentencepiece(self) -> SentencePieceModel:
        """Return the SentencePiece model that the file was made from."""
        scores = self._list("scores", float)
        if len(scores) != len(self._tokens):
            raise self._error("scores are damaged: there must be as many as tokens")
        unknown = self._id("unknown_token_id")
        kinds = [CONTROL if kind == UNKNOWN else kind for kind in self._kinds]
        if unknown is not None:
            kinds[unknown] = UNKNOWN
        texts = list(self._tokens)
        for i, text in Pieces(texts, scores, kinds).of(USER_DEFINED):
            if not text.strip(" "):
                texts[i] = text.replace(" ", SPACE)
        charsmap = []
        if self._ggml("precompiled_charsmap") is not None:
            charsmap = self._list("precompiled_charsmap", int)
        try:
            return SentencePieceModel(
                pieces=Pieces(texts, scores, kinds),
                is_unigram=self._kind == "t5",
                byte_fallback=BYTE in kinds,
                spaces=Spaces(
                    add_dummy_prefix=bool(self._ggml("add_space_prefix", True)),
                    remove_extra=bool(self._ggml("remove_extra_whitespaces", False)),
                    at_end=bool(self._ggml("treat_whitespace_as_suffix", False)),
                ),
                charsmap=bytes(byte & 0xFF for byte in charsmap),
            )
        except (TypeError, ValueError) as error:
            raise self._error(f"entries are damaged ({error})") from error

    # -- parts -------------------------------------------------------------------------------------

    def _vocab(self) -> dict[str, int]:
        known = enumerate(zip(self._tokens, self._kinds, strict=True))
        return {token: i for i, (token, kind) in known if kind != UNUSED}

    def _merges(self) -> list[list[str]]:
        merges = list(map(_merge, self._list("merges", str)))
        if not all(map(all, merges)):
            raise self._error("merges are damaged (one is no pair of tokens)")
        return merges

    def _added_tokens(self) -> list[Definition]:
        known = enumerate(zip(self._tokens, self._kinds, strict=True))
        return [
            added_token(i, token, special=kind == CONTROL)
            for i, (token, kind) in known
            if token and kind in (CONTROL, USER_DEFINED)
        ]

    def _around(self, add_bos: bool, add_eos: bool = False) -> Definition | None:
        """Return the post-processor; the two say what holds where the file says nothing."""
        return around(
            self._end("bos_token_id", "add_bos_token", add_bos),
            self._end("eos_token_id", "add_eos_token", add_eos),
        )

    def _end(self, key: str, switch: str, default: bool) -> list[tuple[int, str]]:
        """Return the token that stands at one end of every text, if the file wants one."""
        token_id = self._id(key)
        if token_id is None or not self._metadata.get(f"tokenizer.ggml.{switch}", default):
            return []
        return [(token_id, self._tokens[token_id])]

    def _id(self, key: str) -> int | None:
        token_id = self._ggml(key)
        if token_id is None and self._kind in ("llama", "t5") and key in _DEFAULT_IDS:
            return _DEFAULT_IDS[key] if _DEFAULT_IDS[key] < len(self._tokens) else None
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self._tokens):
            raise self._error(f"{key} {token_id!r:.60} is none of the {len(self._tokens)} tokens")
        return token_id

    def _list(self, key: str, of: type[T]) -> list[T]:
        values = self._ggml(key)
        if not isinstance(values, list) or not {of} >= set(map(type, values)):
            raise self._error(f"{key} is damaged or missing: it must be a list of {of.__name__}")
        return values

    def _ggml(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._source}: tokenizer.ggml.{problem}")


def _merge(line: str) -> list[str]:
    """Return the two parts of a merge; the first may itself begin with a space."""
    left, _, right = line[1:].partition(" ")
    return [line[:1] + left, right]
