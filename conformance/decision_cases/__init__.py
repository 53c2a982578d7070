"""What the decisions golden asks: rows of logits, settings of processors, and endings; no answers.

A decision is what becomes of logits: which token, with which log-probability, and whether it is the
last.
"""

from conformance.decision_cases.endings import (
    ABSENT,
    ENDINGS,
    FOLLOWED,
    LOGPROBS,
    MODEL,
    PROMPT,
    TOKENS,
    Ending,
    Followed,
    write_model,
)
from conformance.decision_cases.sampling import (
    DRAWS,
    FALSE_ALARM,
    NAME,
    ROWS,
    SETTINGS,
    SITUATIONS,
    Draws,
    Past,
    Row,
    Settings,
    Situation,
    from_json,
    settled,
    situations,
)

__all__ = [
    "ABSENT",
    "DRAWS",
    "ENDINGS",
    "FALSE_ALARM",
    "FOLLOWED",
    "LOGPROBS",
    "MODEL",
    "NAME",
    "PROMPT",
    "ROWS",
    "SETTINGS",
    "SITUATIONS",
    "TOKENS",
    "Draws",
    "Ending",
    "Followed",
    "Past",
    "Row",
    "Settings",
    "Situation",
    "from_json",
    "settled",
    "situations",
    "write_model",
]
