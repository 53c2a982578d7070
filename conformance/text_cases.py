"""The text cases: small tokenizers in the manner of real ones, and texts that make faults show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance import chat_cases, text_vocabularies


@dataclass(frozen=True)
class TextCase:
    """A tokenizer, what is asked of it, and nothing about the answers.

    `pairs` are two texts to be encoded together, `more_sequences` ids to decode besides the broken
    characters of every vocabulary, `stops` pairs of a text and its stop strings, `chats` the
    arguments of a chat template.
    """

    name: str
    tokenizer: Callable[[], dict[str, Any]]
    config: Mapping[str, Any]
    texts: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    more_sequences: tuple[tuple[int, ...], ...] = ()
    stops: tuple[tuple[str, tuple[str, ...]], ...] = ()
    chats: tuple[Mapping[str, Any], ...] = ()

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        definition = self.tokenizer()
        return _broken_characters(definition) + _odd_ids(definition) + self.more_sequences


_TEXTS = (
    "",
    " ",
    "The unhappy others gathered there; isn't it otherwise?",
    # What checks elsewhere are content with (see conformance.mutants.weaker).
    "The authors gathered there and the others thought otherwise.",
    "She sells shells, and surely the shells are happy.",
    "  two  spaces \n\n  and\tlines\r\n\n end  \n",
    "It's John's. WE'LL don't I'M you'Ve; 'tis 'ſ",
    "1234567 x2 3.14  2 ²³ ½ ٣٤ Ⅷ\n2024",
    "aaa aaaaa aaaaaaaaaaaa ------- =====",
    "def merge(left):\n    return left + right\n\n\n\tif (a != b) && c[0]++;",
    "café cafe\u0301 \u212b \u1112\u1161\u11ab 한글 e\u0301\u0327\u0323 \u0344 \u0301",
    "ďábelské 삼겹살 😀👨\u200d👩\u200d👧 é 東京は首都です。",
    "zzz things Việts",
    "ab" * 60 + "the" * 30 + "z" * 100,
    "\x00\x01\x1b\x7f\x85\u00a0\u2028\u3000|\ufeff\ufffd\U0010ffff",
    "".join(map(chr, range(0x100))),
    "a\x04bc d\x06\x04é",
    "\u00a0the\u2003café\u3000 \x85 x\u200b",
)

_PAIRS = (
    ("She sells shells.", " the 12 others"),
    ("", "the"),
    ("a ", ""),
)

_STOPS = (
    ("The quick brown fox jumps", ("own fox",)),
    ("A\nUser: hi", ("\nUser:",)),
    ("stop... now", ("..",)),
    ("aaab", ("aab",)),
    ("abcabd", ("abd",)),
    ("x\n\n\ny", ("\n\n",)),
    ("done 👍🏽!", ("👍🏽",)),
    ("one two three", ("three", "two thr", "wo")),
    ("abcd", ("bc", "abc", "abcd")),
    ("ababab abac", ("abac",)),
    ("nothing to stop at <|", ("<|end|>", "none")),
)

_TALK = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Is 1 < 2 & 'é' > \"e\"?\n"},
    {"role": "assistant", "content": "Yes.", "tool_calls": None},
    {"role": "user", "content": "Why?"},
)
_TOOLS = ({"type": "function", "function": {"name": "größe", "description": "<b>&'\"</b>"}},)
_CHATS = (
    {"conversation": _TALK[1:2], "add_generation_prompt": True},
    {"conversation": _TALK, "add_generation_prompt": True},
    {"conversation": _TALK, "add_generation_prompt": False},
    {"conversation": _TALK, "add_generation_prompt": True, "tools": _TOOLS},
)

# Written with blocks on lines of their own: only trimmed blocks leave no blank lines behind.
_CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {% for tool in tools %}
    {{ tool | tojson }}
    {% endfor %}
<|im_end|>
{% endif %}
{% for message in messages %}
    {% if message.content is not defined %}
        {{ raise_exception('a message without content') }}
    {% endif %}
    {% if loop.index > 3 %}
        {% break %}
    {% endif %}
{{ '<|im_start|>' + message.role }}
{{ message.content }}<|im_end|>
    {% if message.tool_calls is defined %}
tool calls: {{ message.tool_calls }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
_LLAMA = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}"""
_MARKED = """\
{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% generation %}
        {% set seen = 1 %}
{{ message.content + eos_token }}
        {% endgeneration %}
{{ 'leaked' if seen is defined else '' }}
    {% else %}
{{ message.role | upper }}: {{ message.content }}
    {% endif %}
{% endfor %}
"""
_TOOL_USE = "{{ tools | tojson(indent=2) }}{{ messages | length }}"


def _config(template: Any, **tokens: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
        **{f"{name}_token": token for name, token in tokens.items()},
    }


def _broken_characters(definition: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return ids that spell bytes which are no text, each byte a token of its own."""
    vocab, alphabet = definition["model"]["vocab"], text_vocabularies.byte_alphabet()
    if isinstance(vocab, list):  # of a Unigram model
        vocab = {piece: i for i, (piece, _) in enumerate(vocab)}
    if "<0x80>" in vocab:
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    elif alphabet[0x80] not in vocab:
        return ()
    (first, *_) = definition["added_tokens"]

    def ids(*values: int) -> tuple[int, ...]:
        return tuple(vocab[alphabet[byte]] for byte in values if alphabet[byte] in vocab)

    dragon = ids(*("🐉" if alphabet[0xF0] in vocab else "龍").encode())
    return (
        ids(*[0x80] * 9, 0x41),
        ids(0xE2, 0x82, 0x41, 0xE2, 0x82),
        ids(0xED, 0xA0, 0x80, 0xF0, 0x80, 0x80, 0xF4, 0x90, 0x41),
        (*dragon[:2], first["id"], *dragon[2:]),
        (*dragon[:-1], 99_999, dragon[-1], *dragon[:-1]),
        (first["id"], *dragon, first["id"]),
        # Characters, then a byte that is none: a run that was a text so far.
        ids(*"aé龍".encode(), 0x80, *"é".encode(), 0xE2),
        (*ids(0x20, 0x20), first["id"], *ids(0x20, *"é".encode()), *dragon[:-1]),
    )


def _odd_ids(definition: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return ids in an order that no text gives: some of all tokens, special and unknown ones between."""
    size = len(definition["model"]["vocab"])
    specials = [token["id"] for token in definition["added_tokens"]]
    mixed = [i for start in range(0, size, 29) for i in (start, size - 1 - start)]
    return (
        tuple(mixed),
        (*specials, 99_999, size - 1, *specials[::-1], size - 2, size - 2, size - 3),
    )


def _case(
    name: str,
    tokenizer: Callable[[], dict[str, Any]],
    config: Mapping[str, Any],
    texts: tuple[str, ...],
) -> TextCase:
    """Return a case with a chat template; what is asked of it includes stop strings and chats."""
    return TextCase(name, tokenizer, config, _TEXTS + texts, _PAIRS, stops=_STOPS, chats=_CHATS)


def _stages(name: str, tokenizer: Callable[[], dict[str, Any]], *texts: str) -> TextCase:
    """Return a case of the stages alone."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return TextCase(name, tokenizer, config, _TEXTS + texts, _PAIRS)


TEXT_CASES: tuple[TextCase, ...] = (
    _case(
        "text-gpt2",
        text_vocabularies.gpt2,
        _config(_MARKED, bos="<|endoftext|>", eos="<|endoftext|>"),
        ("the end<|endoftext|>the  <|endoftext|>", "<|endoftext|> <|endoftext"),
    ),
    _case(
        "text-llama3",
        text_vocabularies.llama3,
        _config(_LLAMA, bos="<|begin_of_text|>", eos="<|eot|>"),
        (
            "<|start|>user<|end|>\n\nhi<|eot|>",
            "<|eot|><|eot|>x <|eo|> <|eot",
            "<|begin_of_text|>The",
            "O'Toole O'TOOLE I'Mage",
        ),
    ),
    _case(
        "text-qwen2",
        text_vocabularies.qwen2,
        _config(_CHATML, eos="<|im_end|>", pad="<|endoftext|>"),
        (
            "<think>\nhi\n</think>\n<|im_end|>",
            "a  <mask>  b \t<mask><mask>\u00a0 \x1c<mask>",
            "a  <sep>  b<sep> \u2003<sep>\n  <sep>\x1c <mask> ",
            "a<sep>  <mask>b",
            "whole wholesome the whole. whole\u0301 _whole whole² (whole)",
            "e\u0301lan élan d'e\u0301lan \u1112\u1161\u11abé",
            "e\u0344\u0323x o\u0344\u0327\u0323",
            "O'Toole O'TOOLE I'Mage",
        ),
    ),
    _case(
        "text-smollm2",
        text_vocabularies.smollm2,
        _config(
            [{"name": "default", "template": _CHATML}, {"name": "tool_use", "template": _TOOL_USE}],
            bos="<|im_start|>",
            eos="<|im_end|>",
        ),
        ("<|im_start|>user\nin 2024<|im_end|>\n", "  2  22 a2b <repo_name>x"),
    ),
    TextCase(
        "text-chat",
        text_vocabularies.qwen2,
        _config(chat_cases.TEMPLATES, eos="<|im_end|>"),
        ("the end",),
        chats=chat_cases.CHATS,
    ),
    _case(
        "text-pieces",
        text_vocabularies.pieces,
        _config(_TOOL_USE, bos="<s>", eos="</s>"),
        (
            "A-B--C, one;two.. Three ==== four=five #  Six##seven\n",
            "x<naïve 東>y </s>z",
            "ﬁne ①② e\u0301lan Ａｂ",
        ),
    ),
    _stages(
        "text-llama2",
        text_vocabularies.llama2,
        "<s>The<s> the </s>x</s>",
        "😀😀 😀x",
        "▁the ▁ ▁▁",
    ),
    _stages(
        "text-gemma",
        text_vocabularies.gemma,
        "a\n\n\nb\t\tc     d    e",
        "▁▁x  ▁▁<table> <start_of_turn>user\n<bos>",
    ),
    _stages(
        "text-unigram",
        text_vocabularies.unigram,
        "ﬁne ①② e\u0301lan Ａｂ Ⅷ … \u1112\u1161\u11ab",
        "a  <mask> b<mask>  Ångström Ångströms A\u030angström",
        "aaaaaaaaa she sells seashells zzz ▁the a\u0300\u0316",
    ),
    _stages(
        "text-unigram-bytes",
        text_vocabularies.unigram_bytes,
        "a<sep>b <sep> 12 <s>x",
        "▁▁the ①② ﬁ",
    ),
    _stages(
        "text-wordpiece",
        text_vocabularies.wordpiece,
        "The [MASK] sells  [MASK]! [UNK] don't \"we're\" it's .",
        "İstanbul ΑΣ ΟΔΟΣ. ǅ ẞ हिन्दी",
        "中文字\u3007 a\u00adb \u200dx\ufffdy \u0600",
    ),
    _stages(
        "text-letters",
        text_vocabularies.letters,
        "  <Mask>  The <mask> CAFÉ Ångström <s>x",
        "jj7j 12 345a6 a.b!!c İ ǅ",
        "\x1c the हिन्दी ΑΣ ",
    ),
    _stages(
        "text-words",
        text_vocabularies.words,
        "The-unhappy--others-gather; the café 12345 東京",
        "theотherthe 東京the한글 ー々〆x, (she) [CLS] ﬁ ½",
    ),
    _stages(
        "text-spelled-bytes",
        text_vocabularies.spelled_bytes,
        "größe größen  größe!! <s> x</s>  y",
        "!!? things zzz  ",
    ),
    _stages(
        "text-inner-pieces",
        text_vocabularies.inner_pieces,
        "jjQQ 7j7 ...the!!!_x_ __ (([CLS]))",
        "e\u0301\u0327 \u212b ﬁ",
    ),
)
