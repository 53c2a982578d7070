"""How words are cut, by the names that GGUF files have for it (tokenizer.ggml.pre).

GGUF names the rule instead of spelling it out. Where the rule is known from a model's own
tokenizer.json it is that one: llama-bpe, qwen2, deepseek-v3, gpt-4o, tekken, smollm, falcon,
starcoder and command-r; the others are what llama.cpp's llama-vocab.cpp says of the name.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.tokenizer.formats.parts import (
    BYTES,
    CL100K_WORDS,
    O200K_WORDS,
    TEKKEN_WORDS,
    Definition,
    split_at,
)
from engine.tokenizer.normalize.forms import Form
from engine.tokenizer.split.pattern import GPT2_WORDS

_GPT2 = {**BYTES, "use_regex": True}


@dataclass(frozen=True)
class Rule:
    """What a name stands for: pre-tokenizers, the last of which spells bytes, and two switches."""

    splits: tuple[Definition, ...]
    form: Form | None = None
    """The Unicode normal form of the text."""
    ignore_merges: bool = False
    add_bos: bool = False
    """Whether BOS comes first if the file does not say."""


def _words(
    *patterns: str, form: Form | None = None, whole: bool = False, bos: bool = False
) -> Rule:
    return Rule((*map(split_at, patterns), BYTES), form, ignore_merges=whole, add_bos=bos)


_DIGITS = {"type": "Digits", "individual_digits": True}
_NUMBERS = {"type": "Digits", "individual_digits": False}
_PUNCTUATION = {"type": "Punctuation", "behavior": "Contiguous"}
_THREE_DIGITS = split_at("[0-9][0-9][0-9]")

_QWEN2_WORDS = CL100K_WORDS.replace("{1,3}", "")
_QWEN35_WORDS = _QWEN2_WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")

_LLAMA3 = _words(CL100K_WORDS, whole=True, bos=True)
_CL100K = _words(CL100K_WORDS)
_QWEN2 = _words(_QWEN2_WORDS, form="NFC")
_GPT_4O = _words(O200K_WORDS, whole=True)
_DIGIT_WORDS = Rule((_DIGITS, _GPT2))

RULES = {
    "default": _words(r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": Rule((_GPT2,)),
    "phi-2": Rule((_GPT2,)),
    "mpt": Rule((_GPT2,), form="NFC"),
    "olmo": Rule((_GPT2,), form="NFC"),
    "jais": Rule((_GPT2,)),
    "smollm": _DIGIT_WORDS,
    "starcoder": _DIGIT_WORDS,
    "refact": _DIGIT_WORDS,
    "codeshell": _DIGIT_WORDS,
    "command-r": Rule((_DIGITS, _GPT2), form="NFC"),
    "falcon": Rule((_PUNCTUATION, _GPT2, _NUMBERS, _THREE_DIGITS)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen35": _words(_QWEN35_WORDS, form="NFC"),
    "stablelm2": _words(_QWEN2_WORDS),
    "hunyuan": _words(_QWEN2_WORDS),
    "grok-2": _words(_QWEN2_WORDS),
    "gpt-4o": _GPT_4O,
    "llama4": _GPT_4O,
    "tekken": _words(TEKKEN_WORDS, whole=True, bos=True),
    "deepseek-coder": _words(*_DEEPSEEK_CODER),
    "deepseek-v3": _words(*_DEEPSEEK_V3),
    "hunyuan-dense": _words(*_DEEPSEEK_V3),
}
