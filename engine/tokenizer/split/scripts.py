"""Words of one script each, as SentencePiece keeps them apart.

Source: SentencePiece's check of pieces; Unicode Standard Annex 24, in the version of Unicode 9.
"""

from __future__ import annotations

from functools import cache

from engine.tokenizer.unicode_tables import SCRIPTLESS

_SCRIPTS = """
Latin Common Han Cyrillic Greek Arabic Hebrew Devanagari Hangul Thai Inherited
Adlam Ahom Anatolian_Hieroglyphs Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki
Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham
Cherokee Coptic Cuneiform Cypriot Deseret Duployan Egyptian_Hieroglyphs Elbasan Ethiopic Georgian
Glagolitic Gothic Grantha Gujarati Gurmukhi Hanunoo Hatran Imperial_Aramaic Inscriptional_Pahlavi
Inscriptional_Parthian Javanese Kaithi Kannada Kayah_Li Kharoshthi Khmer Khojki Khudawadi Lao
Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Malayalam Mandaic Manichaean Marchen
Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani
Myanmar Nabataean New_Tai_Lue Newa Nko Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian
Old_Permic Old_Persian Old_South_Arabian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong Palmyrene
Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le
Tai_Tham Tai_Viet Takri Tamil Tangut Telugu Thaana Tibetan Tifinagh Tirhuta Ugaritic Vai
Warang_Citi Yi
"""

# Characters whose script has changed since, or which SentencePiece counts elsewhere.
_MOVED = {"Common": r"\u0589\u061c", "Devanagari": r"\u0953\u0954", "Han": r"\u30fc"}
_ALL_MOVED = "".join(_MOVED.values())
_WRITTEN_TOGETHER = {"Han": r"\p{Script=Hiragana}\p{Script=Katakana}"}


@cache
def script_words() -> str:
    """Return the pattern of the words.

    A space, and a character of no script, belongs to the word before it; before the first word
    the reference loses them.
    """
    words = []
    for script in dict.fromkeys(_SCRIPTS.split()):
        its = rf"\p{{Script={script}}}{_WRITTEN_TOGETHER.get(script, '')}"
        first = rf"(?![{_ALL_MOVED}])[{its}]"
        if script in _MOVED:
            first = rf"(?:[{_MOVED[script]}]|{first})"
        words.append(rf"{first}(?:{first}|[ {SCRIPTLESS}])*+")
    return rf"(?![ {SCRIPTLESS}])(?:{'|'.join(words)})"
