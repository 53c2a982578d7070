"""Text to token ids and back; knows nothing of models and imports no torch."""

from engine.tokenizer.encoding import Encoding
from engine.tokenizer.stream import TokenStream
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Encoding", "TokenStream", "Tokenizer"]
