"""Takes the fields of one component of a tokenizer.json, each of the type it must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged


@dataclass(frozen=True)
class Default:
    """A field that may be missing or null, and what it then is."""

    type: type
    value: Any


def take(spec: Mapping[str, Any], source: str, stage: str, **fields: type | Default) -> list[Any]:
    """Return the values of the fields in their order; `type` is known already.

    Raises ModelFileError for a field that is missing, of another type, or not among them.
    """
    name = f"{source}: the {stage} {spec.get('type')}"
    unknown = sorted(spec.keys() - fields.keys() - {"type"})
    if unknown:
        raise ModelFileError(f"{name} has the field {unknown[0]!r:.60}, which is not supported")
    values: list[Any] = []
    for field, expected in fields.items():
        value = spec.get(field)
        if isinstance(expected, Default):
            value = expected.value if value is None else value
            if value is None:
                values.append(value)
                continue
            expected = expected.type
        elif field not in spec:
            raise ModelFileError(f"{name} lacks its field {field}: fetch the file again")
        if type(value) is not expected:
            raise ModelFileError(
                f"{name} has {value!r:.60} as its {field}, which must be of the type "
                f"{expected.__name__}: fetch the file again"
            )
        values.append(value)
    return values


def one_character(text: str, stage: str, spec: Mapping[str, Any], source: str) -> str:
    """Return the text of a field that must be one character; raises ModelFileError."""
    if len(text) != 1:
        raise damaged(source, f"{stage} {spec['type']}", f"{text!r:.60} is not one character")
    return text
