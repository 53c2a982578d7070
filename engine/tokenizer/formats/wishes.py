"""What the files beside a vocabulary want added to it: tokens, and BOS and EOS around a text.

A tokenizer.json says this itself; SentencePiece and tiktoken files leave it to those files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.parts import Definition, added_token, around

_CONFIG, _OLDER = "tokenizer_config.json", "added_tokens.json"


@dataclass(frozen=True)
class Wishes:
    """Entries of added_tokens by id, and whether BOS and EOS are wanted; None is not said."""

    added_tokens: Mapping[int, Definition]
    add_bos: bool | None = None
    add_eos: bool | None = None

    def around(self, bos: tuple[int, str] | None, eos: tuple[int, str] | None) -> Definition | None:
        """Return the post-processor: BOS is added unless unwanted, EOS only if it is wanted."""
        before = [bos] if bos is not None and self.add_bos is not False else []
        after = [eos] if eos is not None and self.add_eos else []
        return around(before, after)


NONE = Wishes({})


def wishes_from_folder(folder: Path) -> Wishes:
    """Return what tokenizer_config.json and added_tokens.json say."""
    older = read_json(folder / _OLDER) if (folder / _OLDER).is_file() else {}
    config = read_json(folder / _CONFIG) if (folder / _CONFIG).is_file() else {}
    try:
        entries = [added_token(_id(i), _text(token), True) for token, i in older.items()]
    except (TypeError, ValueError) as error:
        raise damaged(str(folder / _OLDER), "list of added tokens", error) from error
    try:
        entries += [_entry(i, spec) for i, spec in (config.get(_DECODER) or {}).items()]
        bos, eos = (_switch(config.get(name)) for name in ("add_bos_token", "add_eos_token"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(str(folder / _CONFIG), _DECODER, error) from error
    return Wishes({entry["id"]: entry for entry in entries}, bos, eos)


_DECODER = "added_tokens_decoder"


def _entry(token_id: str, spec: Mapping[str, Any]) -> Definition:
    flags = {name: bool(spec.get(name)) for name in ("single_word", "lstrip", "rstrip")}
    return added_token(_id(token_id), _text(spec["content"]), bool(spec.get("special")), **flags)


def _id(value: Any) -> int:
    number = int(value)
    if isinstance(value, float) or not 0 <= number < 1 << 32:
        raise ValueError(f"{value!r:.60} is no id")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.60} is no token")
    return value


def _switch(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{value!r:.60} is neither true nor false")
    return value
