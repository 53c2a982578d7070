"""The forms in which a model is run: this engine's and transformers', by name.

A name is a kind, and where it differs from the run's, a dtype, and for this engine a quantization:
`eager`, `compiled`, `compiled+float16`, `compiled+int8`, `transformers`, `transformers-compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.device import DTYPES, check_dtype
from engine.errors import RequestError
from engine.quantised import KINDS as QUANTIZATIONS

OURS, REFERENCE = ("conformance.bench.ours",), ("conformance.oracle", "timing")

#: What others are held against, where it is among the forms; they are ordered by who ought to be slower.
AGAINST = ("transformers", "transformers-compiled", "eager")


@dataclass(frozen=True)
class Form:
    """Who answers: `module` in a process of its own, told `options`; numbers are of `dtype`."""

    name: str
    module: tuple[str, ...]
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)
    unasked: tuple[str, ...] = ()  # questions whose answers are another form's

    @property
    def is_compiled(self) -> bool:
        return bool(self.options.get("compiled"))

    def settings(self, model: str, device: str, threads: int | None) -> dict[str, Any]:
        """What its worker is started with."""
        return {
            "model": model,
            "device": device,
            "dtype": self.dtype,
            "threads": threads,
            "options": self.options,
        }


#: By kind. Files are read alike whether what comes of them is compiled or not, and transformers compiles
#: the steps of `generate` alone.
KINDS = {
    "eager": Form("eager", OURS, "float32"),
    "compiled": Form("compiled", OURS, "float32", {"compiled": True}, ("load",)),
    "transformers": Form("transformers", REFERENCE, "float32", {"compiled": False}),
    "transformers-compiled": Form(
        "transformers-compiled",
        REFERENCE,
        "float32",
        {"compiled": True},
        ("load", "prefill", "first", "growth"),
    ),
}


def forms(names: Sequence[str], dtype: str) -> list[Form]:
    """By their names; RequestError for one that is unknown or named twice."""
    check_dtype(dtype)
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise RequestError(f"the form {twice[0]} is named twice")
    if not names:
        raise RequestError(f"no form was named; there are {', '.join(KINDS)}")
    return [_form(name, dtype) for name in names]


def _form(name: str, dtype: str) -> Form:
    kind, *additions = name.split("+")
    if kind not in KINDS:
        raise RequestError(f"no form {kind!r}; there are {', '.join(KINDS)}")
    form, options = KINDS[kind], dict(KINDS[kind].options)
    for addition in additions:
        if addition in DTYPES:
            dtype = addition
        elif addition in QUANTIZATIONS and form.module is OURS:
            options["quantization"] = addition
        else:
            offered = [*DTYPES, *(QUANTIZATIONS if form.module is OURS else ())]
            raise RequestError(f"no {addition!r} for {kind}; there are {', '.join(offered)}")
    return replace(form, name=name, dtype=dtype, options=options)
