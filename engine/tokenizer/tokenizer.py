"""Text to token ids and back, exactly as the model's own tokenizer file says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import regex

from engine.errors import RequestError
from engine.files import garbage_left_alone
from engine.tokenizer.added import AddedTokens, Allows, allowed_tokens, every_token
from engine.tokenizer.aligned import Aligned
from engine.tokenizer.chat.template import ChatTemplate
from engine.tokenizer.decode.ids import IdDecoder
from engine.tokenizer.encoding import Encoding
from engine.tokenizer.fitting import Padding, Truncation
from engine.tokenizer.formats.open import read_tokenizer
from engine.tokenizer.stages import Stages, Surroundings
from engine.tokenizer.stream import TokenStream
from engine.tokenizer.word_cache import WordCache

_LONE_SURROGATE = regex.compile("[\ud800-\udfff]")


class Tokenizer:
    """One model's tokenizer. Its stages are public, so that each can be checked on its own.

    In the order in which a text passes through them:

        added             takes out tokens that are written in the text ("<|im_end|>")
        normalizer        rewrites the plain text between those
        added_normalized  takes out tokens that are written in what comes of it
        splitter          cuts the rest into words
        model             spells each word in tokens
        post_processor    puts special tokens around all ids of a text, or of a pair

    and back: `decoder` makes text of the tokens' spellings.
    """

    def __init__(self, stages: Stages, surroundings: Surroundings, source: str) -> None:
        """Assemble a tokenizer; `Tokenizer.load` is the usual way. `source` is for errors."""
        self.normalizer = stages.normalizer
        self.splitter = stages.splitter
        self.model = stages.model
        self.post_processor = stages.post_processor
        self.decoder = stages.decoder
        self.truncation = stages.truncation
        self.padding = stages.padding
        tokens = stages.added_tokens
        self.added = AddedTokens(token for token in tokens if not token.normalized)
        self.added_normalized = AddedTokens(
            (token for token in tokens if token.normalized), self.normalizer
        )
        self._ids = {**self.model.vocab, **{token.content: token.id for token in tokens}}
        self._tokens = {token_id: token for token, token_id in self._ids.items()}
        # As in the reference: a text shows a token of the normalised text as that spells it, and
        # what is hidden is the spelling.
        self._spellings = self._tokens | {
            token.id: self.normalizer(token.content) for token in tokens if token.normalized
        }
        self._hidden = {token.content for token in tokens if token.special}
        largest_id = max(self._tokens, default=0)
        self._decoders = [
            IdDecoder(partial(self._spelled, skip_special_tokens=skip), self.decoder, largest_id)
            for skip in (False, True)
        ]
        self._word_ids = WordCache(self._ids_of_word)
        self._word_encodings = WordCache(self._encoding_of_word)
        self._chat = ChatTemplate(
            surroundings.chat_templates, surroundings.special_tokens, source, tokens
        )
        self.bos_id = self.token_to_id(surroundings.special_tokens.get("bos_token", ""))
        eos_id = self.token_to_id(surroundings.special_tokens.get("eos_token", ""))
        self.eos_ids = surroundings.eos_ids or (() if eos_id is None else (eos_id,))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a model folder or a tokenizer's file, with what the files beside it say.

        Formats: tokenizer.json, SentencePiece's .model, tiktoken ranks, tekken.json, .gguf.
        """
        with garbage_left_alone():
            return cls(*read_tokenizer(Path(path)))

    @property
    def vocab_size(self) -> int:
        """The number of tokens; a model may have more rows than that."""
        return len(self._ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that the file calls special: decoding can hide them."""
        return frozenset(i for i, token in self._spellings.items() if token in self._hidden)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the file spells it."""
        return self._ids.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as the file spells it, None for an id that has none."""
        return self._tokens.get(token_id)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return what a token adds to a text that has begun, which may be half a character.

        Joined, those of some ids are the text that they add (a space that a decoder takes off the
        beginning of all text is in them). None for an id without a token, and in a vocabulary
        whose tokens are spelled otherwise beside others. Raises RequestError if negative.
        """
        token = self._spelled(token_id, skip_special_tokens=False)
        return None if token is None else self.decoder.added_bytes(token)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        pair: str | None = None,
        parse_special: bool = True,
    ) -> list[int]:
        """Return the ids of a text, or of a pair; a lone surrogate counts as U+FFFD.

        `add_special_tokens` adds those that the file's post-processor asks for. As in the
        reference, special tokens written in the text are read as such, unless `parse_special` is
        false; `encode_prompt` is for texts that are not to be trusted with that.
        """
        texts = [text] if pair is None else [text, pair]
        ids = [self._ids_of(each, allowed_tokens(parse_special)) for each in texts]
        return self.post_processor(*ids, add_special_tokens=add_special_tokens)

    def encode_prompt(self, text: str, parse_special: bool = False) -> list[int]:
        """Return the ids that a model is given for a user's text: special tokens are plain text.

        With `parse_special` they are control tokens, and a BOS that the text begins with is not
        added once more.
        """
        ids = self.encode(text, parse_special=parse_special)
        if parse_special and self.bos_id is not None and ids[:2] == [self.bos_id] * 2:
            return ids[1:]
        return ids

    def encode_with_offsets(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        pair: str | None = None,
        parse_special: bool = True,
        truncation: Truncation | None = None,
    ) -> Encoding:
        """Return the same ids with their tokens and the characters of their text they cover."""
        texts = [text] if pair is None else [text, pair]
        encodings = [self._encoding_of(each, allowed_tokens(parse_special)) for each in texts]
        if truncation is not None:
            added = self.post_processor.added(len(texts)) if add_special_tokens else 0
            encodings = truncation(encodings, added)
        return self.post_processor.process(encodings, add_special_tokens)

    def encode_batch(
        self,
        texts: Sequence[str | tuple[str, str]],
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
        truncation: Truncation | None = None,
        padding: Padding | None = None,
    ) -> list[Encoding]:
        """Return the encoding of each text or pair, cut and padded if that is asked for.

        What the file itself says of that is in `truncation` and `padding` of this tokenizer.
        """
        encode = partial(
            self.encode_with_offsets,
            add_special_tokens=add_special_tokens,
            parse_special=parse_special,
            truncation=truncation,
        )
        encodings = []
        for each in [None] if isinstance(texts, str) else texts:
            match each:
                case str(text):
                    encodings.append(encode(text))
                case [text, pair]:
                    encodings.append(encode(text, pair=pair))
                case _:
                    raise RequestError("a batch is a list of texts and of pairs of texts")
        return encodings if padding is None else padding(encodings)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of some ids; an id without a token gives no text.

        Invalid UTF-8 becomes U+FFFD. Only tokens that the file calls special are skipped.
        """
        return self._decoders[bool(skip_special_tokens)](ids)

    def stream(
        self, skip_special_tokens: bool = False, *, after: Iterable[int] = ()
    ) -> TokenStream:
        """Return a stream whose texts add up to `decode` of the ids pushed.

        Of byte tokens in a row that are not UTF-8 it keeps the characters that were out before the
        first bad byte, where `decode` shows U+FFFD for each byte.
        With `after`, the ids of a prompt, they add up to what those pushed add to its text: all of
        decode(after + ids) but what it begins with in common with decode(after).
        """
        return TokenStream(
            lambda token_id: self._spelled(token_id, skip_special_tokens), self.decoder, after
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        """Return a conversation as the text of the model's chat template, as transformers does.

        `tools` (JSON schemas), `documents`, `chat_template` (a name or a template's text) and
        `continue_final_message` (true, or the name of the field to go on with) mean what they mean
        there; any other option is a variable of the template. Raises RequestError.
        """
        options["add_generation_prompt"] = add_generation_prompt
        return self._chat.render(messages, **options).text

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        parse_special: bool = False,
        **options: Any,
    ) -> list[int]:
        """Return the ids of a conversation; only its template writes control tokens, BOS included.

        Control tokens that stand in a message, a tool or a document are plain text there, but for
        the marks that are not special ("<think>") in the assistant's own messages. With
        `parse_special` they count, as in the reference. Options are those of `render_chat`.
        """
        options["add_generation_prompt"] = add_generation_prompt
        if parse_special:
            return self._ids_of(self._chat.render(messages, **options).text)
        chat = self._chat.render_guarded(messages, **options)
        return self._ids_of(chat.text, chat.allows)

    def encode_chat_with_mask(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a conversation to train on, and 1 for each that is the assistant's.

        As in transformers, where the template marks the assistant's words as generation, and
        control tokens in messages count. Options are those of `render_chat`.
        """
        chat = self._chat.render(messages, **{"add_generation_prompt": False, **options})
        encoding = self.encode_with_offsets(chat.text, add_special_tokens=False)
        mask = [
            int(any(start < until and end > since for since, until in chat.generated))
            for start, end in encoding.offsets
        ]
        return encoding.ids, mask

    # Ids are asked for far more often than offsets, and cost less when nobody wants to know where
    # a word comes from: hence a method of its own for each, with a memory of words of its own.

    def _ids_of(self, text: str, allows: Allows = every_token) -> list[int]:
        """Return the ids of one text, before the post-processor."""
        ids: list[int] = []
        for piece in self.pieces(text, allows):
            if isinstance(piece, Aligned):
                words = self.splitter.words(piece)
                ids += chain.from_iterable(map(self._word_ids.__getitem__, words))
            else:
                ids.append(piece[0])
        return ids

    def _encoding_of(self, text: str, allows: Allows) -> Encoding:
        """Return the same ids with their tokens and offsets."""
        ids, tokens = [], []
        offsets: list[tuple[int, int]] = []
        for piece in self.pieces(text, allows):
            if isinstance(piece, Aligned):
                for word in self.splitter.aligned_words(piece):
                    inner = self._word_encodings[word.text]
                    ids += inner.ids
                    tokens += inner.tokens
                    offsets += [word.span(start, end) for start, end in inner.offsets]
            else:
                token_id, matched = piece
                ids.append(token_id)
                tokens.append(matched.text)
                offsets.append(matched.span(0, len(matched.text)))
        return Encoding(ids, tokens, offsets)

    def pieces(self, text: str, allows: Allows) -> Iterator[Aligned | tuple[int, Aligned]]:
        """Yield normalised plain text, and the added tokens between as (id, what they matched)."""
        if not isinstance(text, str):
            raise RequestError(f"a text to encode must be a string, not {text!r:.60}")
        whole = Aligned.original(_LONE_SURROGATE.sub("\ufffd", text))
        for match in self.added.find(whole.text, allows):
            piece = whole.slice(match.start, match.end)
            if match.id is not None:
                yield match.id, piece
                continue
            piece = piece.rewritten(self.normalizer)
            for inner in self.added_normalized.find(piece.text, _in_original(allows, piece)):
                part = piece.slice(inner.start, inner.end)
                yield part if inner.id is None else (inner.id, part)

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """Return the ids of one unfinished word (see `Splitter.finish`)."""
        return tuple(self.model(self.splitter.finish(word)))

    def _encoding_of_word(self, word: str) -> Encoding:
        """Return the tokens of one unfinished word, with offsets in that word."""
        finished = Aligned.original(word).rewritten(self.splitter.finish)
        where = [w for w, c in zip(finished.where, finished.text, strict=True) for _ in c.encode()]
        parts = self.model.parts(finished.text)
        return Encoding(
            [part.id for part in parts],
            [part.token for part in parts],
            [(where[part.start], where[part.end - 1] + 1) for part in parts],
        )

    def _spelled(self, token_id: int, skip_special_tokens: bool) -> str | None:
        """Return the token to decode, None if the id gives no text."""
        if type(token_id) is not int or token_id < 0:
            raise RequestError(f"{token_id!r:.60} is no token id: ids are integers from 0 up")
        token = self._spellings.get(token_id)
        return None if skip_special_tokens and token in self._hidden else token


def _in_original(allows: Allows, piece: Aligned) -> Allows:
    """Return a rule about places in the original text as one about places in a piece of it."""
    if allows is every_token:
        return allows
    return lambda token, start, end: allows(token, *piece.span(start, end))
