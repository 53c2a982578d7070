"""Reads the tokenizer in a GGUF file's metadata into stages.

GGUF names the split rule instead of spelling it out. The rules here are those of the models'
own tokenizer.json files, which the names stand for; an unknown name is refused.
Source: ggml's gguf specification, section tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.added import AddedToken
from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.bpe import BytePairModel
from engine.tokenizer.decode import ByteLevelDecoder
from engine.tokenizer.normalize import UnicodeForm
from engine.tokenizer.post import PostProcessor, Template
from engine.tokenizer.split import GPT2_WORDS, Split, Splitter
from engine.tokenizer.stages import Stages, Surroundings

# Words of cl100k (tiktoken) as Llama-3 has them; Qwen2 takes digits one by one.
_CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_UNCHANGED = Chain()


@dataclass(frozen=True)
class _Rule:
    """What the name of a split rule stands for."""

    patterns: tuple[str, ...]
    normalizer: Rewrite = _UNCHANGED
    ignore_merges: bool = False
    add_bos: bool = False


_RULES = {
    "gpt-2": _Rule((GPT2_WORDS,)),
    "smollm": _Rule((r"\p{N}|\P{N}+", GPT2_WORDS)),
    "llama-bpe": _Rule(
        (_CL100K_WORDS.format(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True
    ),
    "qwen2": _Rule((_CL100K_WORDS.format(digits=r"\p{N}"),), normalizer=UnicodeForm("NFC")),
}

# tokenizer.ggml.token_type
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the specification
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_tokenizer(path: Path) -> tuple[Stages, Surroundings]:
    """Return the tokenizer of a GGUF file."""
    from engine.gguf import open_gguf

    return stages_from_metadata(open_gguf(path).metadata, str(path))


def stages_from_metadata(metadata: Mapping[str, Any], source: str) -> tuple[Stages, Surroundings]:
    """Return the stages that GGUF metadata describe; `source` is for errors."""

    def ggml(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    if ggml("model") != "gpt2":
        raise ModelFileError(
            f"{source}: tokenizer.ggml.model {ggml('model')!r} is not supported; 'gpt2' "
            "(byte-level BPE) is"
        )
    rule = _RULES.get(ggml("pre"))
    if rule is None:
        raise ModelFileError(
            f"{source}: tokenizer.ggml.pre {ggml('pre')!r} is not a split rule known here: "
            f"{', '.join(_RULES)}"
        )
    tokens = ggml("tokens", [])
    types = ggml("token_type", [1] * len(tokens))
    merges = ggml("merges", [])
    if not _are_strings(tokens) or not _are_strings(merges) or len(types) != len(tokens):
        raise ModelFileError(f"{source}: the token lists in the metadata are damaged")

    vocab = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    try:
        model = BytePairModel(vocab, [_merge(line) for line in merges], rule.ignore_merges)
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{source}: the merges are damaged ({error})") from error
    special_tokens = {
        name: tokens[ggml(key)]
        for name, key in _SPECIAL_TOKENS.items()
        if isinstance(ggml(key), int) and ggml(key) < len(tokens)
    }
    template = metadata.get("tokenizer.chat_template")
    stages = Stages(
        added_tokens=tuple(
            AddedToken(id=i, content=token, special=kind == _CONTROL, normalized=False)
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ),
        normalizer=rule.normalizer,
        splitter=Splitter([*map(Split, rule.patterns), SpellBytes()]),
        model=model,
        post_processor=PostProcessor(
            [
                Template(
                    _ends(special_tokens, "bos_token", vocab, ggml("add_bos_token", rule.add_bos)),
                    _ends(special_tokens, "eos_token", vocab, ggml("add_eos_token", False)),
                )
            ]
        ),
        decoder=ByteLevelDecoder(),
    )
    ends = dict.fromkeys(ggml(key) for key in _END_TOKENS if isinstance(ggml(key), int))
    return stages, Surroundings(
        special_tokens, {"default": template} if isinstance(template, str) else {}, tuple(ends)
    )


def _are_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _merge(line: str) -> tuple[str, str]:
    left, right = line.split(" ")
    return left, right


def _ends(
    special_tokens: Mapping[str, str], name: str, vocab: Mapping[str, int], wanted: bool
) -> tuple[tuple[int, str], ...]:
    """Return the token the template puts at one end of a text, if the file wants one."""
    token = special_tokens.get(name, "")
    return ((vocab[token], token),) if wanted and token in vocab else ()
