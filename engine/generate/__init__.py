"""From a prompt to a completion: parameters, sampling, stopping and the loop."""

from engine.generate.answer import Completion, Piece
from engine.generate.beam_params import BeamSearch
from engine.generate.draft_model import DraftModel
from engine.generate.engine import Engine
from engine.generate.params import SamplingParams
from engine.generate.speculation import PromptLookup

__all__ = [
    "BeamSearch",
    "Completion",
    "DraftModel",
    "Engine",
    "Piece",
    "PromptLookup",
    "SamplingParams",
]
