"""Streams and stop strings driven in any order, against a specification that decodes all anew."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from engine.generate.stop import StopMatcher
from tests.tokenizer.stream_families import FAMILIES
from tests.tokenizer.test_stop import whole

IDS = st.lists(st.integers(0, 2**30), max_size=4)
STOPS = st.lists(st.text("ab \ufffd€.", min_size=1, max_size=3), max_size=3)


class Streams(RuleBasedStateMachine):
    """`said` is what the stream gave, `shown` what the stop strings let through."""

    @initialize(name=st.sampled_from(sorted(FAMILIES)), skip=st.booleans(), stops=STOPS)
    def begin(self, name: str, skip: bool, stops: list[str]) -> None:
        self.family, self.skip, self.stops = FAMILIES[name], skip, stops
        self._start([], False)

    def _start(self, prompt: list[int], include: bool) -> None:
        self.prompt, self.include = prompt, include
        self.stream = self.family.tokenizer.stream(self.skip, after=prompt)
        self.ids: list[int] = []
        self._match()

    def _match(self) -> None:
        self.matcher = StopMatcher(self.stops, self.include)
        self.said = self.shown = ""

    def _known(self, drawn: list[int]) -> list[int]:
        """Most ids of the small vocabularies are bytes; half of what is drawn are the others."""
        size = self.family.size
        return [i % size if i % 2 else size - 1 - i // 2 % min(size, 14) for i in drawn]

    def _take(self, text: str) -> None:
        self.said += text
        self.shown += self.matcher.push(text)

    @rule(drawn=IDS)
    def push(self, drawn: list[int]) -> None:
        for token_id in self._known(drawn):
            self._take(self.stream.push(token_id))
            self.ids.append(token_id)

    @precondition(lambda self: self.family.byte is not None)
    @rule(data=st.one_of(st.sampled_from([b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"a \xc3"])),
          cut=st.integers(1, 4))  # fmt: skip
    def push_bytes(self, data: bytes, cut: int) -> None:
        for byte in data[:cut]:
            self._take(self.stream.push(byte))
            self.ids.append(byte)

    @rule()
    def flush(self) -> None:
        self._take(self.stream.flush())
        self.shown += self.matcher.flush()
        answer = self.family.answer(self.prompt, self.ids, self.skip)
        assert self.said == answer
        assert (self.shown, self.matcher.matched) == whole(answer, self.stops, self.include)
        assert self.stream.flush() == self.matcher.flush() == ""
        self.prompt, self.ids = [], []
        self._match()

    @rule(drawn=IDS, include=st.booleans())
    def leave_it_for_a_new_stream(self, drawn: list[int], include: bool) -> None:
        self._start(self._known(drawn), include)

    @invariant()
    def what_is_certain_is_out_and_nothing_else(self) -> None:
        if not hasattr(self, "family"):
            return
        assert self.said == self.family.certain(self.prompt, self.ids, self.skip)
        shown, matched = whole(self.said, self.stops, self.include)
        if not matched:
            beginnings = [s[:n] for s in self.stops for n in range(1, len(s))]
            held = max((len(b) for b in beginnings if self.said.endswith(b)), default=0)
            shown = shown[: len(shown) - held]
        assert (self.shown, self.matcher.matched) == (shown, matched)


TestStreams = Streams.TestCase
