"""The tokenizer in lockstep: every stage is fed the reference's input, so only the guilty is blamed.

The answers come from a golden text case; see `conformance.oracle.text`, which writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.generate.stop import StopMatcher
from engine.tokenizer import Tokenizer

#: In the order in which a text meets them; the first with a finding is the one to look at.
STAGES = (
    "tokenizer.added",
    "tokenizer.normalize",
    "tokenizer.split",
    "tokenizer.merge",
    "tokenizer.post",
    "tokenizer.offsets",
    "tokenizer.decode",
    "tokenizer.stream",
    "tokenizer.stop",
    "tokenizer.chat",
    "tokenizer.encode",
)


@dataclass(frozen=True)
class TextFinding:
    """A stage that answered otherwise than the reference; `text` is the input it was given, in words."""

    stage: str
    text: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.stage} of {self.text!r}: {self.got!r}, expected {self.expected!r}"


def check_text(
    folder: Path, load: Callable[[Path], Tokenizer] = Tokenizer.load
) -> list[TextFinding]:
    """Return what differs from a text case's answers, in the order of the stages.

    The free run, text to ids, is judged only where every stage is right on its own: what is wrong
    in it then lies between the stages. A stage that raises has answered with its error. An error
    while loading is the caller's.
    """
    golden = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    return judge_text(load(folder), golden)


def judge_text(tokenizer: Tokenizer, golden: dict[str, Any]) -> list[TextFinding]:
    """Return the same of answers that are read already, in the form of text.json."""
    findings = _differences(_questions(tokenizer, golden))
    findings = findings or _differences(_free_run(tokenizer, golden))
    return sorted(findings, key=lambda finding: STAGES.index(finding.stage))


#: What is said of each token of two texts, besides its id.
_COLUMNS_OF_PAIRS = ("tokens", "offsets", "type_ids", "special_tokens_mask")

# A stage, the input as a report shows it, the reference's answer, and how to get ours.
Question = tuple[str, str, Any, Callable[[], Any]]


def answers(
    folder: Path, load: Callable[[Path], Tokenizer] = Tokenizer.load
) -> list[tuple[str, str, Any]]:
    """Return all that a tokenizer answers to a text case, right or wrong: stage, input, answer."""
    tokenizer = load(folder)
    golden = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    asked = chain(_questions(tokenizer, golden), _free_run(tokenizer, golden))
    return [(stage, shown, attempt(ask)) for stage, shown, _, ask in asked]


def _differences(questions: Iterator[Question]) -> list[TextFinding]:
    findings = []
    for stage, shown, expected, ask in questions:
        got = attempt(ask)
        if got != expected:
            findings.append(TextFinding(stage, shown, expected, got))
    return findings


def attempt(ask: Callable[[], Any]) -> Any:
    """Return what a stage answers; whatever a faulty one raises is its answer."""
    try:
        return _plain(ask())
    except Exception as error:
        return repr(error)


def _free_run(tokenizer: Tokenizer, golden: dict[str, Any]) -> Iterator[Question]:
    for answers in golden["texts"]:
        text = answers["text"]
        alone, whole = answers["post"]
        plain = partial(tokenizer.encode, text, add_special_tokens=False)
        yield "tokenizer.encode", text, whole, partial(tokenizer.encode, text)
        yield "tokenizer.encode", text, alone, plain
        yield "tokenizer.encode", text, whole, partial(_ids_with_offsets, tokenizer, text)
    for answers in golden["pairs"]:
        first, second = answers["pair"]
        both = partial(tokenizer.encode, first, pair=second)
        yield "tokenizer.encode", f"{first}, {second}", answers["post"][1], both


def _questions(tokenizer: Tokenizer, golden: dict[str, Any]) -> Iterator[Question]:
    for answers in golden["texts"]:
        yield from _about_text(tokenizer, answers)
        yield from _about_ids(tokenizer, answers)
    for answers in golden["pairs"]:
        yield from _about_pair(tokenizer, answers)
    for answers in golden["sequences"]:
        yield from _about_ids(tokenizer, answers)
    for stop in golden["stops"]:
        text, expected = stop["text"], [stop["shown"], stop["matched"]]
        for size in (1, 2, 3, 5, len(text)):
            yield "tokenizer.stop", text, expected, partial(_shown, text, stop["stops"], size)
    for chat in golden["chats"]:
        shown = json.dumps(chat["chat"], ensure_ascii=False)
        yield "tokenizer.chat", shown, chat["rendered"], partial(_rendered, tokenizer, chat)
        if chat["rendered"] is not None:
            yield "tokenizer.chat", shown, True, partial(_encodes_what_it_renders, tokenizer, chat)
        if "mask" in chat:
            yield "tokenizer.chat", shown, chat["mask"], partial(_assistant_mask, tokenizer, chat)
        if "control" in chat:
            yield "tokenizer.chat", shown, chat["control"], partial(_control, tokenizer, chat)


def _about_text(tokenizer: Tokenizer, answers: dict[str, Any]) -> Iterator[Question]:
    text = answers["text"]
    yield "tokenizer.added", text, answers["added"], partial(tokenizer.added, text)
    asks: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
        ("tokenizer.normalize", "normalize", tokenizer.normalizer),
        ("tokenizer.added", "added_normalized", tokenizer.added_normalized),
        ("tokenizer.split", "split", tokenizer.splitter),
        ("tokenizer.merge", "merge", tokenizer.model),
    )
    for stage, key, ask in asks:
        for given, expected in answers[key]:
            yield stage, given, expected, partial(ask, given)
    ids, with_special_tokens = answers["post"]
    arranged = partial(tokenizer.post_processor, ids, add_special_tokens=True)
    yield "tokenizer.post", text, with_special_tokens, arranged
    spelled = [answers["tokens"], answers["offsets"]]
    yield "tokenizer.offsets", text, spelled, partial(_tokens_and_offsets, tokenizer, answers)


def _about_pair(tokenizer: Tokenizer, answers: dict[str, Any]) -> Iterator[Question]:
    shown = ", ".join(answers["pair"])
    for special, expected in zip((False, True), answers["post"], strict=True):
        arranged = partial(tokenizer.post_processor, *answers["alone"], add_special_tokens=special)
        yield "tokenizer.post", shown, expected, arranged
    columns = [answers[key] for key in _COLUMNS_OF_PAIRS]
    yield "tokenizer.offsets", shown, columns, partial(_columns_of_pair, tokenizer, answers)


def _about_ids(tokenizer: Tokenizer, answers: dict[str, Any]) -> Iterator[Question]:
    ids = answers["ids"]
    shown = f"ids {ids}"
    texts = [answers["decode"], answers["decode_skipping"]]
    # They differ at a run of byte tokens that is no text: what was shown of it stays.
    streamed = answers.get("streamed", texts)
    for skip, text, in_stream in zip((False, True), texts, streamed, strict=True):
        yield "tokenizer.decode", shown, text, partial(tokenizer.decode, ids, skip)
        yield "tokenizer.stream", shown, in_stream, partial(_streamed, tokenizer, ids, skip)
    earliest = list(accumulate(answers["stream"], initial=""))[1:]
    yield "tokenizer.stream", shown, earliest, partial(_released, tokenizer, ids, earliest)


def _pieces(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


def _streamed(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    return "".join(_pieces(tokenizer, ids, skip_special_tokens))


def _released(tokenizer: Tokenizer, ids: list[int], earliest: list[str]) -> list[str]:
    """Return the text that was out after each id.

    Up to three bytes may be the beginning of a character, and a stream is right to hold them back.
    Where the reference, which decodes what it has, shows them as U+FFFD, its text is returned.
    """
    released = list(accumulate(_pieces(tokenizer, ids, False)[:-1], initial=""))[1:]
    held_back = ("\ufffd", "\ufffd" * 2, "\ufffd" * 3)
    return [
        certain if certain.removeprefix(out) in held_back else out
        for out, certain in zip(released, earliest, strict=True)
    ]


def _shown(text: str, stops: list[str], size: int) -> tuple[str, bool]:
    """Return what a matcher lets out of a text that comes in pieces of `size`, and its verdict."""
    matcher = StopMatcher(stops)
    out = [matcher.push(text[start : start + size]) for start in range(0, len(text), max(size, 1))]
    return "".join([*out, matcher.flush()]), matcher.matched


def _ids_with_offsets(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_with_offsets(text).ids


def _tokens_and_offsets(tokenizer: Tokenizer, answers: dict[str, Any]) -> tuple[Any, Any]:
    """Return spellings and offsets; of other ids than the reference's they would say nothing."""
    encoding = tokenizer.encode_with_offsets(answers["text"])
    if encoding.ids != answers["ids"]:
        return answers["tokens"], answers["offsets"]
    return encoding.tokens, encoding.offsets


def _columns_of_pair(tokenizer: Tokenizer, answers: dict[str, Any]) -> list[Any]:
    first, second = answers["pair"]
    encoding = tokenizer.encode_with_offsets(first, pair=second)
    if encoding.ids != answers["post"][1]:
        return [answers[key] for key in _COLUMNS_OF_PAIRS]
    return [getattr(encoding, key) for key in _COLUMNS_OF_PAIRS]


def _rendered(tokenizer: Tokenizer, chat: dict[str, Any]) -> str | None:
    """Return a chat as text, None where it is refused."""
    arguments = dict(chat["chat"])
    try:
        return tokenizer.render_chat(arguments.pop("conversation"), **arguments)
    except RequestError:
        return None


def _encodes_what_it_renders(tokenizer: Tokenizer, chat: dict[str, Any]) -> bool:
    """Return whether a chat's ids are those of its text, with no special token more or less.

    The default policy differs at control tokens in messages alone, and `control` tells of those.
    """
    arguments = dict(chat["chat"])
    messages = arguments.pop("conversation")
    parsed = tokenizer.encode_chat(messages, parse_special=True, **arguments)
    guarded = tokenizer.encode_chat(messages, **arguments)
    ids = tokenizer.encode(_rendered(tokenizer, chat) or "", add_special_tokens=False)
    return parsed == ids and (guarded == ids or "control" in chat)


def _assistant_mask(tokenizer: Tokenizer, chat: dict[str, Any]) -> list[int]:
    arguments = dict(chat["chat"])
    return tokenizer.encode_chat_with_mask(arguments.pop("conversation"), **arguments)[1]


def _control(tokenizer: Tokenizer, chat: dict[str, Any]) -> list[int]:
    """Return the added tokens that are left of a chat whose messages hold some of their own."""
    arguments = dict(chat["chat"])
    ids = tokenizer.encode_chat(arguments.pop("conversation"), **arguments)
    return [i for i in ids if tokenizer.added(tokenizer.id_to_token(i) or "") == [i]]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: tuples are lists there."""
    return json.loads(json.dumps(value))
