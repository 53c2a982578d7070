"""The tokenizers library as the reference, one stage at a time; with its chat templates, transformers.

This is the only module that imports `tokenizers`. A `Reference` answers what each stage makes of a
given input; `capture_text_case` writes those answers down as the golden of a text case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import tokenizers
from gguf import GGUFReader
from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from conformance.text_cases import TextCase
from conformance.tokens import TokensCase, multilingual_text, text_sha256
from engine.errors import LockstepError

Pieces = list[int | str]

#: Arguments of a chat that ask for more than its text.
_ASKED = ("return_assistant_tokens_mask", "harmless")

_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")

#: The rule that GGUF's name "smollm" stands for in the model's own tokenizer.json.
_SMOLLM_WORDS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


@dataclass(frozen=True)
class ReferenceEncoding:
    """Ids, token spellings, character offsets and the rest, as the library gives them."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    type_ids: list[int]
    special_tokens_mask: list[int]
    attention_mask: list[int]

    @classmethod
    def of(cls, encoding: tokenizers.Encoding) -> ReferenceEncoding:
        return cls(*(getattr(encoding, column.name) for column in fields(cls)))


class Reference:
    """One tokenizer.json in the library's hands."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        """Take the parsed object of a tokenizer.json."""
        self._file = json.dumps(definition)
        self._whole = Tokenizer.from_str(self._file)
        # Truncation and padding are settings of a training run, not of the vocabulary.
        self._whole.no_truncation()
        self._whole.no_padding()
        added = definition["added_tokens"]
        self._hidden = frozenset(token["content"] for token in added if token["special"])
        self.added = _finder([t for t in added if not t["normalized"]], lambda content: content)
        self.added_normalized = _finder([t for t in added if t["normalized"]], self.normalize)

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read a tokenizer.json or the folder that holds one."""
        file = path / "tokenizer.json" if path.is_dir() else path
        return cls(json.loads(file.read_text(encoding="utf-8")))

    @classmethod
    def of_gguf(cls, path: Path) -> Reference:
        """Read the tokenizer of a GGUF file as transformers does, with one correction.

        transformers takes the split rule of GPT-2 for every GGUF vocabulary of the kind "gpt2".
        SmolLM2's own rule cuts digits out first, which shows in white space before a digit.
        """
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        definition = json.loads(converted.backend_tokenizer.to_str())
        rule = GGUFReader(path).get_field("tokenizer.ggml.pre")
        if rule is not None and rule.contents() == "smollm":
            definition["pre_tokenizer"] = _SMOLLM_WORDS
        return cls(definition)

    @property
    def added_tokens(self) -> dict[str, int]:
        """The ids of the added tokens, by their content."""
        found = self._whole.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in found.items()}

    def token_to_id(self, token: str) -> int | None:
        found: int | None = self._whole.token_to_id(token)
        return found

    def normalize(self, text: str) -> str:
        normalizer = self._whole.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def split(self, text: str) -> list[str]:
        """Return the words of a normalised text, in the spelling the model reads."""
        splitter = self._whole.pre_tokenizer
        if splitter is None:
            return [text] if text else []
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    def merge(self, word: str) -> list[int]:
        """Return the ids of one word."""
        return [token.id for token in self._whole.model.tokenize(word)]

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        pair: str | None = None,
        parse_special: bool = True,
    ) -> ReferenceEncoding:
        self._whole.encode_special_tokens = not parse_special
        encoding = self._whole.encode(text, pair, add_special_tokens=add_special_tokens)
        return ReferenceEncoding.of(encoding)

    def encode_batch(self, texts: Sequence[str]) -> list[ReferenceEncoding]:
        """Encode many texts without special tokens."""
        self._whole.encode_special_tokens = False
        encodings = self._whole.encode_batch(list(texts), add_special_tokens=False)
        return list(map(ReferenceEncoding.of, encodings))

    def fitted(
        self, texts: Sequence[str | tuple[str, str]], add_special_tokens: bool = True
    ) -> list[ReferenceEncoding]:
        """Encode texts and pairs, cut and padded as the file's own blocks say."""
        whole = Tokenizer.from_str(self._file)
        encodings = whole.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return list(map(ReferenceEncoding.of, encodings))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def streamed(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return what a stream shows of some ids that can take nothing back.

        That is what `decode` gives, but for a run of byte tokens that is not UTF-8. The library
        makes U+FFFD of each of its bytes, even of those that were whole characters while they
        were all there was. Of such a run the characters before the first bad byte stay.
        """
        hidden = self._hidden if skip_special_tokens else frozenset()
        known = filter(None, map(self._whole.id_to_token, ids))
        tokens = [str(token) for token in known if token not in hidden]
        shown: list[str] = []
        for is_byte, run in groupby(tokens, lambda token: _BYTE_TOKEN.fullmatch(token) is not None):
            group = list(run)
            shown += _shown_of(group) if is_byte else group
        decoder = self._whole.decoder
        return " ".join(shown) if decoder is None else str(decoder.decode(shown))

    def stream(self, ids: Sequence[int]) -> list[str]:
        """Return what each id adds to the text that is already certain, in quadratic time.

        Certain is what streams of the ids so far and of them all agree on.
        """
        whole = self.streamed(ids)
        certain = [
            _common_prefix(self.streamed(ids[:count]), whole) for count in range(1, len(ids) + 1)
        ]
        return [now[len(before) :] for before, now in pairwise(["", *certain])]


def _shown_of(run: list[str]) -> list[str]:
    """Return a run of byte tokens with U+FFFD in the place of those that are no character's."""
    data = bytes(int(token[3:5], 16) for token in run)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return run[: error.start] + ["\ufffd"] * (len(run) - error.start)
    return run


def _finder(
    specs: Iterable[Mapping[str, Any]], spell: Callable[[str], str]
) -> Callable[[str], Pieces]:
    """Return what cuts a text at these added tokens, whatever the other stages do.

    The library has no such door; a tokenizer with an empty vocabulary does nothing else.
    """
    finder = Tokenizer(BPE(vocab={}, merges=[]))
    finder.add_tokens(
        [
            AddedToken(
                spell(spec["content"]),
                single_word=spec["single_word"],
                lstrip=spec["lstrip"],
                rstrip=spec["rstrip"],
                normalized=False,
                special=spec["special"],
            )
            for spec in specs
        ]
    )

    ids = {finder.token_to_id(spell(spec["content"])): spec["id"] for spec in specs}

    def find(text: str) -> Pieces:
        pieces: Pieces = []
        done = 0
        encoding = finder.encode(text)
        for found, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if done < start:
                pieces.append(text[done:start])
            pieces.append(ids[found])
            done = end
        return [*pieces, text[done:]] if done < len(text) else pieces

    return find


def _common_prefix(a: str, b: str) -> str:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return a[:same]


def capture_text_case(case: TextCase, out: Path) -> None:
    """Write the whole golden folder of a text case: the tokenizer, the answers, the manifest."""
    from conformance.golden import write_manifest

    out.mkdir(parents=True)
    definition = case.tokenizer()
    _write_json(out / "tokenizer.json", definition)
    _write_json(out / "tokenizer_config.json", case.config)
    reference = Reference(definition)
    answers = {
        "texts": [_answer(reference, text) for text in case.texts],
        "pairs": [_answer_pair(reference, *pair) for pair in case.pairs],
        "sequences": [_answer_ids(reference, list(ids)) for ids in case.sequences],
        "stops": [answer_stop(*stop) for stop in case.stops],
        "chats": _answer_chats(out, case, reference),
    }
    _write_json(out / "text.json", answers)
    write_manifest(
        out,
        {
            "case": case.name,
            "kind": "text",
            "command": f"lockstep golden capture {case.name}",
            "versions": _versions(),
        },
    )


def capture_tokens(case: TokensCase, model: Path, out: Path) -> None:
    """Write the golden of a real tokenizer: a .gguf file, or a folder with its tokenizer.json."""
    from conformance.golden import sha256, write_manifest

    is_gguf = model.suffix == ".gguf"
    reference = Reference.of_gguf(model) if is_gguf else Reference.load(model)
    encoding = reference.encode(multilingual_text())
    answers = {
        "ids": encoding.ids,
        "starts": [start for start, _ in encoding.offsets],
        "ends": [end for _, end in encoding.offsets],
        "decoded": reference.decode(encoding.ids, skip_special_tokens=True),
    }
    out.mkdir(parents=True)
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in answers.items()
    )
    (out / "tokens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    write_manifest(
        out,
        {
            "case": case.name,
            "kind": "tokens",
            "checkpoint": case.asset,
            "checkpoint_sha256": sha256(model if is_gguf else model / "tokenizer.json"),
            "text_sha256": text_sha256(),
            "command": f"lockstep golden capture {case.name}",
            "versions": _versions(),
        },
    )


def _versions() -> dict[str, str]:
    import transformers

    return {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def _answer(reference: Reference, text: str) -> dict[str, Any]:
    """Return, for every stage, its inputs and the reference's outputs as pairs."""
    added = reference.added(text)
    raw = [piece for piece in added if isinstance(piece, str)]
    normalized = [reference.normalize(piece) for piece in raw]
    inner = [reference.added_normalized(piece) for piece in normalized]
    plain = [piece for pieces in inner for piece in pieces if isinstance(piece, str)]
    words = [reference.split(piece) for piece in plain]
    each_word = dict.fromkeys(word for group in words for word in group)
    alone, whole = reference.encode(text, add_special_tokens=False), reference.encode(text)
    return {
        "text": text,
        "added": added,
        "normalize": list(zip(raw, normalized, strict=True)),
        "added_normalized": list(zip(normalized, inner, strict=True)),
        "split": list(zip(plain, words, strict=True)),
        "merge": [(word, reference.merge(word)) for word in each_word],
        "post": (alone.ids, whole.ids),
        "tokens": whole.tokens,
        "offsets": whole.offsets,
        **_answer_ids(reference, whole.ids),
    }


def _answer_pair(reference: Reference, first: str, second: str) -> dict[str, Any]:
    """Return what the post-processor makes of two texts, with special tokens and without."""
    whole = reference.encode(first, pair=second)
    plain = reference.encode(first, add_special_tokens=False, pair=second)
    return {
        "pair": (first, second),
        "alone": [reference.encode(text, add_special_tokens=False).ids for text in (first, second)],
        "post": (plain.ids, whole.ids),
        "tokens": whole.tokens,
        "offsets": whole.offsets,
        "type_ids": whole.type_ids,
        "special_tokens_mask": whole.special_tokens_mask,
    }


def _answer_ids(reference: Reference, ids: list[int]) -> dict[str, Any]:
    """Return the text of some ids; `streamed` only where a stream shows other ones."""
    texts = [reference.decode(ids, skip) for skip in (False, True)]
    streamed = [reference.streamed(ids, skip) for skip in (False, True)]
    return {
        "ids": ids,
        "decode": texts[0],
        "decode_skipping": texts[1],
        "stream": reference.stream(ids),
        **({"streamed": streamed} if streamed != texts else {}),
    }


def answer_stop(text: str, stops: Sequence[str], after: int = 0) -> dict[str, Any]:
    """Return what may be shown of a text, by looking at every end of a match beyond `after` in turn."""
    for end in range(after + 1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return {"text": text, "stops": stops, "shown": text[: min(starts)], "matched": True}
    return {"text": text, "stops": stops, "shown": text, "matched": False}


@cache
def _in_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def render_chat(
    folder: Path, conversation: Sequence[Any], add_generation_prompt: bool, **extra: Any
) -> str:
    """Return a conversation as transformers renders it with the files of a folder."""
    rendered = _in_transformers(folder).apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=add_generation_prompt, **extra
    )
    return str(rendered)


def _answer_chats(folder: Path, case: TextCase, reference: Reference) -> list[dict[str, Any]]:
    """Return each chat with its text (None where the template refuses it), and more if it asks.

    Makes sure that a chat's ids are those of its text.
    """
    chats = []
    for chat in case.chats:
        tokenizer = _in_transformers(folder)
        arguments = {name: value for name, value in chat.items() if name not in _ASKED}
        answer: dict[str, Any] = {"chat": arguments, "rendered": None}
        chats.append(answer)
        try:
            answer["rendered"] = rendered = render_chat(folder, **arguments)
        except (ValueError, TemplateError):
            continue
        ids = tokenizer.apply_chat_template(tokenize=True, return_dict=False, **arguments)
        if ids != reference.encode(rendered, add_special_tokens=False).ids:
            raise LockstepError(f"{case.name}: transformers adds tokens to a chat it has rendered")
        if chat.get("return_assistant_tokens_mask"):
            asked = {**arguments, "return_assistant_tokens_mask": True}
            answer["mask"] = tokenizer.apply_chat_template(**asked)["assistant_masks"]
        if "harmless" in chat:
            twin = {**arguments, **chat["harmless"]}
            left = tokenizer.apply_chat_template(tokenize=True, return_dict=False, **twin)
            added = {token["id"] for token in case.tokenizer()["added_tokens"]}
            answer["control"] = [token_id for token_id in left if token_id in added]
    return chats
