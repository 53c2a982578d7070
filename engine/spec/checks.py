"""How a spec checks its own values: a wrong one is the model file's fault."""

import math

from engine.errors import ModelFileError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelFileError(message)


def positive(number: float) -> bool:
    return 0 < number < math.inf  # False for NaN, too
