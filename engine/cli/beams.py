"""The options of a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from typer import Option

from engine.errors import RequestError

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Searching:
    """The likeliest answers as wholes, instead of the likeliest token each time."""

    panel: ClassVar = "Beam search"

    beams: Annotated[
        int | None, Option(help="Follow this many beams, and give the best -n answers.")
    ] = None
    length_penalty: Annotated[
        float | None, Option(help="More favours long answers, less short ones; by default 1.")
    ] = None
    early_stopping: Annotated[
        str | None,
        Option(help="true: end with as many answers as beams; false (default); or never."),
    ] = None

    def asked(self) -> dict[str, Any]:
        from engine import BeamSearch

        how: dict[str, Any] = {}
        if self.length_penalty is not None:
            how["length_penalty"] = self.length_penalty
        if self.early_stopping is not None:
            how["early_stopping"] = _WORDS.get(self.early_stopping, self.early_stopping)
        if self.beams is not None:
            return {"beams": BeamSearch(self.beams, **how)}
        if how:
            raise RequestError(
                "--length-penalty and --early-stopping belong to a beam search: add --beams"
            )
        return {}
