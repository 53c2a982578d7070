"""Reads a tokenizer.json, and the files beside it, into stages.

A component that is not byte-level BPE's (Unigram, Metaspace, byte fallback ...) is refused by
name. Truncation and padding blocks are ignored: this engine never cuts a prompt on its own.
Source: the format as the tokenizers library 0.23 writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import regex

from engine.errors import ModelFileError
from engine.files import read_json, read_text
from engine.tokenizer.added import AddedToken
from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.alphabet import CHARACTERS, SpellBytes
from engine.tokenizer.bpe import BytePairModel
from engine.tokenizer.decode import ByteLevelDecoder, Decoder
from engine.tokenizer.normalize import UnicodeForm
from engine.tokenizer.post import PostProcessor, PostStep, Template, TrimOffsets
from engine.tokenizer.split import BEHAVIORS, GPT2_WORDS, PrefixSpace, Split, Splitter
from engine.tokenizer.stages import Stages, Surroundings

# Constructs that Ruby's syntax, in which these patterns are written, reads in another way.
_FOREIGN_REGEX = regex.compile(r"\\[hHRXKG]|&&|\(\?[a-z]*m|\[\[:")


def stages_from_json(data: Mapping[str, Any], source: str) -> Stages:
    """Return the stages that the object of a tokenizer.json describes; `source` is for errors."""
    reader = _Reader(source)
    model = reader.model(data.get("model"))
    return Stages(
        added_tokens=reader.added_tokens(data.get("added_tokens") or [], model.vocab),
        normalizer=reader.normalizer(data.get("normalizer")),
        splitter=Splitter(reader.splits(data.get("pre_tokenizer"))),
        model=model,
        post_processor=reader.post_processor(data.get("post_processor")),
        decoder=reader.decoder(data.get("decoder")),
    )


def surroundings_from_folder(folder: Path) -> Surroundings:
    """Return what tokenizer_config.json, special_tokens_map.json and chat_template.jinja say."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json(folder / name)
    texts = {key: _content(value) for key, value in config.items() if key.endswith("_token")}
    templates = _chat_templates(config.get("chat_template"), folder / "tokenizer_config.json")
    template_file = folder / "chat_template.jinja"
    if template_file.is_file():
        templates["default"] = read_text(template_file)
    return Surroundings({k: v for k, v in texts.items() if v is not None}, templates)


def _content(token: Any) -> str | None:
    """Return the text of a token that is written as a string or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _chat_templates(spec: Any, path: Path) -> dict[str, str]:
    match spec:
        case None:
            return {}
        case str():
            return {"default": spec}
        case list():
            try:
                return {str(entry["name"]): str(entry["template"]) for entry in spec}
            except (TypeError, KeyError):
                pass
    raise ModelFileError(f"{path}: chat_template must be a string or a list of named templates")


class _Reader:
    """Reads the components of one file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def normalizer(self, spec: Any) -> Rewrite:
        match spec:
            case None:
                return Chain()
            case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}:
                return UnicodeForm(form)
            case {"type": "Sequence", "normalizers": list(steps)}:
                return Chain(tuple(map(self.normalizer, steps)))
        raise self._refuse("normalizer", spec)

    def splits(self, spec: Any) -> list[Split | Rewrite]:
        """Return the steps of a pre-tokenizer."""
        match spec:
            case None:
                return []
            case {"type": "Split", "pattern": pattern, "behavior": str(behavior)} if (
                behavior in BEHAVIORS
            ):
                return [self._split(pattern, behavior, bool(spec.get("invert", False)))]
            case {"type": "Digits"}:
                run = "" if spec.get("individual_digits", False) else "+"
                return [Split(rf"\p{{N}}{run}|\P{{N}}+")]
            case {"type": "ByteLevel"}:
                prefix = [PrefixSpace()] if spec.get("add_prefix_space", True) else []
                words = [Split(GPT2_WORDS)] if spec.get("use_regex", True) else []
                return [*prefix, *words, SpellBytes()]
            case {"type": "Sequence", "pretokenizers": list(parts)}:
                return [step for part in parts for step in self.splits(part)]
        raise self._refuse("pre_tokenizer", spec)

    def _split(self, pattern: Any, behavior: str, invert: bool) -> Split:
        match pattern:
            case {"String": str(text)} if text:
                return Split(regex.escape(text), behavior, invert)
            case {"Regex": str(text)} if not _FOREIGN_REGEX.search(text):
                try:
                    return Split(text, behavior, invert)
                except regex.error:
                    pass
        raise ModelFileError(
            f"{self._source}: the pre_tokenizer Split has a pattern that is not supported: "
            f"{pattern!r:.200}"
        )

    def model(self, spec: Any) -> BytePairModel:
        # Files of GPT-2's time leave the type out.
        if not isinstance(spec, dict) or spec.get("type", "BPE") != "BPE" or "merges" not in spec:
            raise self._refuse("model", spec)
        for option in (
            "dropout",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
        ):
            if spec.get(option):
                raise ModelFileError(
                    f"{self._source}: the BPE option {option} is not supported in byte-level BPE"
                )
        vocab = self._vocab(spec.get("vocab"))
        if spec.get("unk_token") and not all(character in vocab for character in CHARACTERS):
            raise ModelFileError(
                f"{self._source}: the BPE option unk_token is not supported in a vocabulary that "
                "lacks bytes"
            )
        try:
            merges = [self._merge(entry) for entry in spec["merges"]]
            return BytePairModel(vocab, merges, bool(spec.get("ignore_merges")))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{self._source}: the merges are damaged ({error}): fetch the file again"
            ) from error

    def _vocab(self, spec: Any) -> dict[str, int]:
        if not isinstance(spec, dict) or not all(
            type(token_id) is int and token_id >= 0 for token_id in spec.values()
        ):
            raise ModelFileError(f"{self._source}: the vocab must map tokens to ids from 0 up")
        return spec

    @staticmethod
    def _merge(entry: Any) -> tuple[str, str]:
        left, right = entry.split(" ") if isinstance(entry, str) else entry
        return left, right

    def added_tokens(self, specs: Any, vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
        try:
            tokens = tuple(
                AddedToken(
                    id=int(spec["id"]),
                    content=str(spec["content"]),
                    special=bool(spec["special"]),
                    normalized=bool(spec["normalized"]),
                    lstrip=bool(spec["lstrip"]),
                    rstrip=bool(spec["rstrip"]),
                    single_word=bool(spec["single_word"]),
                )
                for spec in specs
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{self._source}: the added_tokens are damaged ({error}): fetch the file again"
            ) from error
        for token in tokens:
            if token.id < 0 or vocab.get(token.content, token.id) != token.id:
                raise ModelFileError(
                    f"{self._source}: the added token {token.content!r} has the id {token.id}, "
                    f"but the vocab gives it {vocab.get(token.content)}"
                )
        return tuple(token for token in tokens if token.content)

    def post_processor(self, spec: Any) -> PostProcessor:
        steps = self._post_steps(spec)
        if sum(isinstance(step, Template) for step in steps) > 1:
            # The reference lets the first one win; no real file has two.
            raise ModelFileError(
                f"{self._source}: more than one post_processor TemplateProcessing is not supported"
            )
        return PostProcessor(steps)

    def _post_steps(self, spec: Any) -> list[PostStep]:
        match spec:
            case None:
                return []
            case {"type": "ByteLevel"}:
                if not spec.get("trim_offsets", True):
                    return []
                return [TrimOffsets(prefix_space=bool(spec.get("add_prefix_space", True)))]
            case {
                "type": "TemplateProcessing",
                "single": list(pieces),
                "special_tokens": dict(special_tokens),
            }:
                return [self._template(pieces, special_tokens)]
            case {"type": "Sequence", "processors": list(parts)}:
                return [step for part in parts for step in self._post_steps(part)]
        raise self._refuse("post_processor", spec)

    def _template(self, pieces: list[Any], special_tokens: dict[str, Any]) -> Template:
        """Return the template of a single text: special tokens around one sequence."""
        sides: list[list[tuple[int, str]]] = [[]]
        texts = []
        try:
            for piece in pieces:
                if "Sequence" in piece:
                    texts.append(piece["Sequence"]["id"])
                    sides.append([])
                else:
                    token = special_tokens[piece["SpecialToken"]["id"]]
                    sides[-1] += zip(token["ids"], token["tokens"], strict=True)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{self._source}: the post_processor TemplateProcessing is damaged ({error})"
            ) from error
        if texts != ["A"]:
            raise ModelFileError(
                f"{self._source}: the post_processor TemplateProcessing must hold the text once"
            )
        return Template(tuple(sides[0]), tuple(sides[1]))

    def decoder(self, spec: Any) -> Decoder:
        match spec:
            case {"type": "ByteLevel"}:
                return ByteLevelDecoder()
            case {"type": "Sequence", "decoders": [only]}:
                return self.decoder(only)
        raise self._refuse("decoder", spec)

    def _refuse(self, stage: str, spec: Any) -> ModelFileError:
        name = spec.get("type", "without a type") if isinstance(spec, dict) else spec
        return ModelFileError(
            f"{self._source}: the {stage} {name!r:.60} is not supported; byte-level BPE tokenizers "
            "as those of Llama-3, Qwen and GPT-2 are"
        )
