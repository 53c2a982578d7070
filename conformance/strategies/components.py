"""Random components of a tokenizer.json, alone and in chains, with every option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from conformance.charsmap import charsmap
from conformance.strategies.vocabularies import Json, Spelling

_PATTERNS = (
    r"\s+", r"\d", r"\p{N}{1,3}", r"\p{L}+", r"[^\s]+|\s", r" ?\p{L}+", r"a|ab", r"(?i:'s|t)",
    r"[A-Z][a-z]*", r"(?=\p{Lu})", r"x*", r"^a", r"$", r"\s+(?!\S)", r"\w+|[^\w\s]+", r"\b", ".",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)  # fmt: skip
_STRINGS = (" ", "a", "ab", "  ", "\n", "é", "▁", "-", "the", "Ġ", "東")
_WRITTEN = ("", " ", "▁", "a", "é", "e\u0301", "ab", "--", "東京")
_BEHAVIORS = st.sampled_from(
    ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
)
_CHARSMAP = charsmap(
    {"ﬁ": "fi", "①": "1", "\u00a0": " ", "e\u0301": "é", "\u200b": "", "Ａ": "A", "\u3000": " "}
    | {"\n": " ", "\t": " ", "½": "1⁄2", "東": "东", "👍": ":+1:", "ß": "s", "b\u0301": "B"}
)

_patterns = st.one_of(
    st.sampled_from(_STRINGS).map(lambda text: {"String": text}),
    st.sampled_from(_PATTERNS).map(lambda pattern: {"Regex": pattern}),
)
_flag = st.booleans()


def _of(kind: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind), **options})


def _sequence(key: str, single: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    def chain(steps: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
        return st.lists(steps, max_size=4).map(lambda all_: {"type": "Sequence", key: all_})

    return st.one_of(single, chain(single), chain(st.one_of(single, chain(single))))


_byte_level = _of("ByteLevel", add_prefix_space=_flag, trim_offsets=_flag, use_regex=_flag)
_schemes = st.sampled_from(["always", "first", "never"])
_metaspace = st.one_of(
    _of("Metaspace", replacement=st.sampled_from("▁▁▁_"), prepend_scheme=_schemes, split=_flag),
    _of("Metaspace", replacement=st.just("▁"), add_prefix_space=st.just(True)),
)


def _kinds(*plain: str, **options: st.SearchStrategy[Json]) -> dict[str, st.SearchStrategy[Json]]:
    return {**{kind: _of(kind) for kind in plain}, **options}


#: By stage and type, components that stand alone.
SINGLE: Mapping[str, Mapping[str, st.SearchStrategy[Json]]] = {
    "normalizer": _kinds(
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"),
        Strip=_of("Strip", strip_left=_flag, strip_right=_flag),
        Replace=_of("Replace", pattern=_patterns, content=st.sampled_from(_WRITTEN)),
        Prepend=_of("Prepend", prepend=st.sampled_from(_WRITTEN)),
        Precompiled=_of("Precompiled", precompiled_charsmap=st.just(_CHARSMAP)),
        BertNormalizer=_of(
            "BertNormalizer",
            clean_text=_flag,
            handle_chinese_chars=_flag,
            strip_accents=st.sampled_from([None, True, False]),
            lowercase=_flag,
        ),
    ),
    "pre_tokenizer": _kinds(
        *("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"),
        ByteLevel=_byte_level,
        Metaspace=_metaspace,
        Split=_of("Split", pattern=_patterns, behavior=_BEHAVIORS, invert=_flag),
        Digits=_of("Digits", individual_digits=_flag),
        Punctuation=_of("Punctuation", behavior=_BEHAVIORS),
        CharDelimiterSplit=_of("CharDelimiterSplit", delimiter=st.sampled_from(" -aé東")),
    ),
    "decoder": _kinds(
        *("ByteFallback", "Fuse"),
        ByteLevel=_byte_level,
        Metaspace=_metaspace,
        Strip=_of(
            "Strip", content=st.sampled_from(" ▁a"), start=st.integers(0, 2), stop=st.integers(0, 2)
        ),
        Replace=_of("Replace", pattern=_patterns, content=st.sampled_from(_WRITTEN)),
        WordPiece=_of("WordPiece", prefix=st.sampled_from(["##", "##", "", "▁"]), cleanup=_flag),
        BPEDecoder=_of("BPEDecoder", suffix=st.sampled_from(["</w>", "</w>", "", "a"])),
    ),
}
NORMALIZER, PRE_TOKENIZER, DECODER = (st.one_of(*kinds.values()) for kinds in SINGLE.values())

_BYTES_ALONE = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False
}  # fmt: skip
_SPACES_ALONE = {
    "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True
}  # fmt: skip


def _from_spaces(*last: Json) -> Json:
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]
    return {"type": "Sequence", "decoders": decoders}


# What a vocabulary of each spelling is used with: no text would meet its tokens without.
_USUAL: Mapping[
    Spelling, tuple[tuple[Json | None, ...], tuple[Json | None, ...], tuple[Json | None, ...]]
]
_USUAL = {
    "plain": ((None,), (None, {"type": "Whitespace"}), (None, {"type": "Fuse"})),
    "metaspace": (
        (
            None,
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            {"type": "Prepend", "prepend": "▁"},
        ),
        (_SPACES_ALONE, None),
        (
            _from_spaces(),
            _from_spaces({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
            _SPACES_ALONE,
        ),
    ),
    "bytes": ((None, {"type": "ByteLevel"}), (_BYTES_ALONE, None), (_BYTES_ALONE,)),
    "pieces": (
        (None, {"type": "Lowercase"}),
        ({"type": "BertPreTokenizer"}, {"type": "WhitespaceSplit"}),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True},),
    ),
}


def _chain(key: str, single: st.SearchStrategy[Json], usual: tuple[Json | None, ...]) -> Any:
    """The usual component, any chain, or a chain that ends in the usual one."""
    ends = st.sampled_from(usual)

    def closed(steps: list[Json], end: Json | None) -> Json:
        return {"type": "Sequence", key: steps if end is None else [*steps, end]}

    together = st.builds(closed, st.lists(single, max_size=3), ends)
    return st.one_of(ends, together, st.none(), _sequence(key, single))


def normalizers(spelling: Spelling) -> st.SearchStrategy[Json | None]:
    """Normalizers for a vocabulary of that spelling, or for none."""
    return _chain("normalizers", NORMALIZER, _USUAL[spelling][0])  # type: ignore[no-any-return]


def pre_tokenizers(spelling: Spelling) -> st.SearchStrategy[Json | None]:
    """Pre-tokenizers for a vocabulary of that spelling, or for none."""
    return _chain("pretokenizers", PRE_TOKENIZER, _USUAL[spelling][1])  # type: ignore[no-any-return]


def decoders(spelling: Spelling) -> st.SearchStrategy[Json | None]:
    """Decoders for a vocabulary of that spelling, or for none."""
    return _chain("decoders", DECODER, _USUAL[spelling][2])  # type: ignore[no-any-return]


def post_processors(ids: Mapping[str, int]) -> st.SearchStrategy[Json | None]:
    """Post-processors that put tokens of `ids` around one text and two.

    At most one component of a chain adds tokens: the library panics at most others.
    """
    trims = _of("ByteLevel", add_prefix_space=_flag, trim_offsets=_flag, use_regex=_flag)
    if not ids:
        return st.one_of(st.none(), trims)
    token = st.sampled_from(sorted(ids.items())).map(list)
    adds = st.one_of(
        templates(ids),
        templates(ids),
        _of("BertProcessing", sep=token, cls=token),
        _of("RobertaProcessing", sep=token, cls=token, trim_offsets=_flag, add_prefix_space=_flag),
    )
    some = st.lists(trims, max_size=2)
    chain = st.builds(
        lambda before, one, after: [*before, *one, *after], some, st.lists(adds, max_size=1), some
    )
    return st.one_of(
        st.none(), trims, adds, chain.map(lambda steps: {"type": "Sequence", "processors": steps})
    )


@st.composite
def templates(draw: st.DrawFn, ids: Mapping[str, int]) -> Json:
    """A TemplateProcessing; a special token of it may stand for two ids."""
    token = st.sampled_from(sorted(ids))
    names: set[str] = set()

    def specials(type_id: int) -> list[Json]:
        some = draw(st.lists(token, max_size=2))
        names.update(some)
        return [{"SpecialToken": {"id": name, "type_id": type_id}} for name in some]

    def text(name: str, type_id: int) -> Json:
        return {"Sequence": {"id": name, "type_id": type_id}}

    first, second = draw(st.sampled_from([("A", "B")] * 3 + [("B", "A")]))
    single = [*specials(0), text("A", 0), *specials(0)]
    pair = [*specials(0), text(first, 0), *specials(1), text(second, 1), *specials(1)]
    extra = draw(st.lists(token, max_size=1))
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            name: {
                "id": name,
                "ids": [ids[name], *(ids[more] for more in extra)],
                "tokens": [name, *extra],
            }
            for name in sorted(names)
        },
    }
