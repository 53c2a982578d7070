"""Faults of structured output, which show in masks and in what answers say, not in a golden.

They are no part of the catalogue that goldens judge: `expected` is the test that must fail, as file::test
below tests/engine/, for one of the laws in structured_laws.py.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_LLGUIDANCE = "guidance-ai/llguidance, docs/syntax.md"
_OUTLINES = "Willard and Louf 2023, section 3"

_MASKS = "masks_are_those_of_a_naive_run"
_PATTERNS = "patterns_match_their_answers"
_BRANCHES = "each_of_n_answers_follows_its_own"
_ENDS = "answers_end_where_nothing_can_follow"
_LONGER = "an_answer_may_be_told_to_be_longer_than_it_can"


def _structured(
    id: str, wrong: str, source: str, file: str, old: str, new: str, law: str
) -> Mutant:
    test = f"test_structured.py::test_law_holds[{law}]"
    return fault(f"structured-{id}", wrong, source, file, old, new, test)


STRUCTURED: tuple[Mutant, ...] = (
    _structured(
        "mask-ignored",
        "chooses among all tokens, whatever the structure",
        _OUTLINES,
        "generate/sample.py",
        "logits = logits.masked_fill(~self.guide.mask().to(logits.device), -torch.inf)",
        "self.guide.mask()",
        _BRANCHES,
    ),
    _structured(
        "mask-inverted",
        "takes the tokens that may come for those that may not",
        _OUTLINES,
        "generate/sample.py",
        "~self.guide.mask()",
        "self.guide.mask()",
        _BRANCHES,
    ),
    _structured(
        "mask-of-the-step-before",
        "gives the mask that was computed before the last token",
        _OUTLINES,
        "generate/guide.py",
        "return mask\n",
        "mask, self.old = getattr(self, 'old', mask), mask\n        return mask\n",
        _MASKS,
    ),
    _structured(
        "bits-from-the-other-end",
        "reads each byte of a mask from its highest bit",
        _LLGUIDANCE,
        "generate/guide.py",
        'bitorder="little"',
        'bitorder="big"',
        _MASKS,
    ),
    _structured(
        "not-pushed",
        "does not tell the guide which token was chosen",
        _OUTLINES,
        "generate/request.py",
        "self._guide.push(token)",
        "pass",
        _BRANCHES,
    ),
    _structured(
        "pushed-twice",
        "tells the guide of each token two times",
        "openvinotoolkit/openvino.genai#4081",
        "generate/request.py",
        "self._guide.push(token)",
        "self._guide.push(token)\n            self._guide.push(token)",
        _BRANCHES,
    ),
    _structured(
        "one-guide-for-all",
        "lets the answers to a prompt move one guide",
        _OUTLINES,
        "generate/guide.py",
        "self._compiled(structure).deep_copy()",
        "self._compiled(structure)",
        _BRANCHES,
    ),
    _structured(
        "ends-at-any-time",
        "allows the end tokens where the answer is not complete",
        "EricLBuehler/mistral.rs#2204",
        "generate/guide.py",
        "mask[self._ends] = complete",
        "mask[self._ends] = True",
        _MASKS,
    ),
    _structured(
        "one-end-token",
        "allows the first of the end tokens alone",
        "vllm-project/vllm#49227",
        "generate/guide.py",
        "mask[self._ends] = complete",
        "mask[self._ends[:1]] = complete",
        _MASKS,
    ),
    _structured(
        "ends-as-text",
        "lets a stop token be chosen as a part of the text that it spells",
        "vllm-project/vllm#52146",
        "generate/guide.py",
        "mask[self._ends] = complete",
        "mask[self._ends] |= complete",
        _MASKS,
    ),
    _structured(
        "end-spelled",
        "takes the name of the library's end token for a text",
        _LLGUIDANCE,
        "generate/guide.py",
        "self.special_token_ids = [vocab_size]",
        "self.special_token_ids = []",
        "an_end_token_is_no_text",
    ),
    _structured(
        "special-tokens-spell",
        "lets special tokens spell the text of their names",
        "huggingface/transformers.js#1758",
        "generate/guide.py",
        'b"" if token in special else _bytes(tokenizer, token)',
        "_bytes(tokenizer, token)",
        _MASKS,
    ),
    _structured(
        "one-way-to-spell",
        "allows only the tokens that the library would spell a text with",
        _LLGUIDANCE,
        "generate/guide.py",
        '{"no_forcing": true}',
        '{"no_forcing": false}',
        _MASKS,
    ),
    _structured(
        "bytes-as-their-names",
        "takes <0x41> for six characters",
        "cactus-compute/cactus#810",
        "tokenizer/decode/sequence.py",
        "return byte_of(token) or token.encode()",
        "return token.encode()",
        _MASKS,
    ),
    _structured(
        "spaces-as-written",
        "leaves U+2581 in a piece, which stands for a space",
        "Kudo and Richardson 2018 (SentencePiece), section 3.1",
        "tokenizer/decode/sequence.py",
        "            token = each.prepared(token)\n",
        "            each.prepared(token)\n",
        _MASKS,
    ),
    _structured(
        "alphabet-as-written",
        "takes the characters that spell bytes for text",
        "Radford et al. 2019, the encoder published with GPT-2",
        "tokenizer/decode/sequence.py",
        "            spell = bytes_of\n",
        "            spell = str.encode\n",
        _MASKS,
    ),
    _structured(
        "never-done",
        "goes on where nothing can follow",
        _OUTLINES,
        "generate/guide.py",
        "return bool(self._matcher.is_stopped())",
        "return False",
        _ENDS,
    ),
    _structured(
        "done-too-early",
        "ends an answer as soon as it is complete, though it could go on",
        "epfl-dlab/transformers-CFG#103",
        "generate/guide.py",
        "return bool(self._matcher.is_stopped())",
        "return bool(self._matcher.is_accepting())",
        _ENDS,
    ),
    _structured(
        "min-tokens-forgotten",
        "ends an answer that nothing can follow before it has as many tokens as it must",
        "OpenAI API and vLLM, min_tokens",
        "generate/request.py",
        " and n >= self.params.min_tokens",
        "",
        _LONGER,
    ),
    _structured(
        "formats-by-their-look",
        "takes the 29th of February for a day of every year",
        "RFC 3339, section 5.7",
        "generate/json_schema.py",
        'new["allOf"] = [*new.get("allOf", ()), {"pattern": narrower}]',
        "pass",
        "a_day_is_in_the_calendar",
    ),
    _structured(
        "pattern-between-slashes",
        "leaves a slash in a pattern as it is",
        _LLGUIDANCE,
        "generate/structured.py",
        r"""{"/": r"\/", """,
        "{",
        _PATTERNS,
    ),
)
