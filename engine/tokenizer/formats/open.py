"""Finds the tokenizer of a model folder, and reads a tokenizer's file of any known format.

In a folder the first of `NAMES` counts, then the only .tiktoken file. What a file is shows in its
content where its name leaves that open: a tokenizer.model may be SentencePiece's or tiktoken's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import read_bytes, read_json
from engine.tokenizer.formats.definition import stages_from_json
from engine.tokenizer.formats.gguf import read_gguf_tokenizer
from engine.tokenizer.formats.parts import Definition
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.sentencepiece import definition_from_model, stages_from_model
from engine.tokenizer.formats.sentencepiece_file import is_sentencepiece, read_sentencepiece
from engine.tokenizer.formats.surroundings import surroundings_from_folder
from engine.tokenizer.formats.tekken import definition_from_tekken, is_tekken
from engine.tokenizer.formats.tiktoken import definition_from_tiktoken, is_tiktoken
from engine.tokenizer.formats.wishes import wishes_from_folder
from engine.tokenizer.stages import Stages, Surroundings

NAMES = ("tokenizer.json", "tokenizer.model", "tekken.json")

# Who is who among the special tokens of formats that do not say.
_ROLES = {
    "<s>": "bos_token",
    "<|begin_of_text|>": "bos_token",
    "</s>": "eos_token",
    "<|end_of_text|>": "eos_token",
    "<|endoftext|>": "eos_token",
    "<unk>": "unk_token",
    "<pad>": "pad_token",
}


def tokenizer_file(path: Path) -> Path | None:
    """Return the file that holds the tokenizer of a model folder, None if there is none.

    A path that is no folder is that of a file which holds its own.
    """
    if not path.is_dir():
        return path if path.is_file() else None
    for name in NAMES:
        if (path / name).is_file():
            return path / name
    found = sorted(path.glob("*.tiktoken"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ModelFileError(f"{path} has several tokenizers ({names}): name the file itself")
    return found[0] if found else None


def read_tokenizer(path: Path) -> tuple[Stages, Surroundings, str]:
    """Return the tokenizer of a model folder or a file, and the file's name for errors."""
    file = tokenizer_file(path)
    if file is None and path.is_dir():
        raise ModelFileError(
            f"{path / NAMES[0]} does not exist, nor is there a {', a '.join(NAMES[1:])} or a "
            ".tiktoken file: a model folder needs one of them"
        )
    if file is None:
        raise ModelFileError(f"{path} does not exist: give a model folder or a tokenizer's file")
    source = str(file)
    if file.suffix == ".gguf":
        return *read_gguf_tokenizer(file), source
    stages, roles = _read_file(file, source)
    beside = surroundings_from_folder(file.parent)
    special_tokens = {**roles, **beside.special_tokens}
    return stages, replace(beside, special_tokens=special_tokens), source


def _read_file(file: Path, source: str) -> tuple[Stages, Mapping[str, str]]:
    """Return the stages of a file, and what it says itself of the roles of special tokens."""
    if file.suffix == ".json":
        data = read_json(file)
        if is_tekken(data):
            return _of_ranks(definition_from_tekken(data, source), source)
        return stages_from_json(data, source), {}
    content = read_bytes(file)
    wishes = wishes_from_folder(file.parent)
    if is_sentencepiece(content):
        model = read_sentencepiece(content, source)
        definition = definition_from_model(model, source, wishes)
        return stages_from_model(model, definition, source), model.special_tokens
    if is_tiktoken(content):
        definition = definition_from_tiktoken(content, file.stem, source, wishes)
        return _of_ranks(definition, source)
    raise ModelFileError(
        f"{file} is no tokenizer's file of a known format: a tokenizer.json, a SentencePiece "
        ".model, a tiktoken rank file, a tekken.json and a .gguf file are"
    )


def _of_ranks(definition: Definition, source: str) -> tuple[Stages, Mapping[str, str]]:
    contents = [entry["content"] for entry in definition["added_tokens"]]
    roles = {_ROLES[content]: content for content in contents if content in _ROLES}
    return stages_of(definition, source), roles
