"""From a prompt to a completion: parameters, sampling, stopping and the loop."""

from engine.generate.answer import Completion, Piece
from engine.generate.engine import Engine
from engine.generate.params import SamplingParams

__all__ = ["Completion", "Engine", "Piece", "SamplingParams"]
