"""Reads the fields of Metaspace, which is a pre-tokenizer and a decoder with the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.fields import Default, one_character, take


def read_metaspace(spec: Mapping[str, Any], source: str, stage: str) -> tuple[str, str, bool]:
    """Return the character that is a space, when one is put before a text, and whether to split.

    The second is "always", "first" or "never"; files before 2024 say `add_prefix_space` for it,
    which today's library refuses if it is false. Raises ModelFileError.
    """
    replacement, scheme, older, split, _ = take(
        spec,
        source,
        stage,
        replacement=str,
        prepend_scheme=Default(str, None),
        add_prefix_space=Default(bool, None),
        split=Default(bool, True),
        str_rep=Default(str, None),  # the replacement again, in files of 2020
    )
    scheme = scheme or ("never" if older is False else "always")
    if scheme not in ("always", "first", "never"):
        raise damaged(source, f"{stage} Metaspace", f"its prepend_scheme is {scheme!r:.60}")
    if older is False and scheme != "never":
        raise damaged(
            source,
            f"{stage} Metaspace",
            f"its prepend_scheme is {scheme!r}, and its add_prefix_space false",
        )
    return one_character(replacement, stage, spec, source), scheme, split
