"""What a tokenizer's file, of whichever format, is read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.tokenizer.added import AddedToken
from engine.tokenizer.aligned import Rewrite
from engine.tokenizer.decode.decoder import Decoder
from engine.tokenizer.fitting import Padding, Truncation
from engine.tokenizer.models.model import Model
from engine.tokenizer.post import PostProcessor
from engine.tokenizer.split.splitter import Splitter


@dataclass(frozen=True)
class Stages:
    """The stages of one tokenizer, in the order in which a text passes through them."""

    added_tokens: tuple[AddedToken, ...]
    normalizer: Rewrite
    splitter: Splitter
    model: Model
    post_processor: PostProcessor
    decoder: Decoder
    truncation: Truncation | None = None
    padding: Padding | None = None


@dataclass(frozen=True)
class Surroundings:
    """What a model's files say about its tokens and chats beyond the stages."""

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The text of bos_token, eos_token, pad_token ..., as far as the files name them."""
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Chat templates by name; the ordinary one is called "default"."""
    eos_ids: tuple[int, ...] = ()
