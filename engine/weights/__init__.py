"""Checkpoints on disk (safetensors, GGUF) to a decoder's parameters, checked in both directions."""

from engine.weights.checkpoint import Checkpoint, open_checkpoint
from engine.weights.load import load_parameters, parameter_bytes

__all__ = ["Checkpoint", "load_parameters", "open_checkpoint", "parameter_bytes"]
