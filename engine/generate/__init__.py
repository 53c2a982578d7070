"""From a prompt to a completion: parameters, sampling, stopping and the loop."""

from engine.generate.engine import Completion, Engine, Piece
from engine.generate.params import SamplingParams

__all__ = ["Completion", "Engine", "Piece", "SamplingParams"]
