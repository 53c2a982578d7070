"""How much the methods, filters and operators of templates can make of little.

Each rule gets the call's arguments before the call, and answers with the characters that it would
make, at most; a function without a rule makes no more than a few times what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from typing import Any

from engine.tokenizer.chat.budget import PLACE, Budget

Rule = Callable[..., int]
# A conversion of the operator %: its width and its precision.
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NUMBER = re.compile(r"\d+")


def count(value: Any) -> int:
    """Return a number that is asked for; what is no number will be refused by whoever gets it."""
    return abs(value) if isinstance(value, int) else 0


def length(value: Any) -> int:
    """Return how much there is of a text or list, 0 of anything else."""
    return len(value) if isinstance(value, Sized) else 0


def numbers(spec: str) -> int:
    """Return the sum of the numbers in a format specification such as ">10.3f"."""
    return sum(map(_number, _NUMBER.findall(spec)))


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[:12] or 0)


def percent(budget: Budget, form: Any, values: Any) -> int:
    """Return at most how long `form % values` becomes."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    conversions = _CONVERSION.findall(text)
    of_values = values if isinstance(values, tuple) else (values,)
    if isinstance(values, Mapping):
        of_values = tuple(values.values())
    starred = max(map(count, of_values), default=0)
    widths = sum(
        starred if width == "*" else _number(width) for pair in conversions for width in pair
    )
    return len(text) + widths + len(conversions) * budget.weight(values)


def _width(budget: Budget, text: Any, width: Any = 80, *rest: Any, **more: Any) -> int:
    del budget, rest
    return length(text) + count(more.get("width", width))


def _replace(
    budget: Budget, text: Any, old: Any = "", new: Any = "", *rest: Any, **more: Any
) -> int:
    del budget, rest, more
    found = text.count(old) if isinstance(text, (str, bytes)) else str(text).count(str(old))
    return length(text) + found * length(new)


def _expand_tabs(budget: Budget, text: Any, tab_size: Any = 8, **more: Any) -> int:
    del budget
    tabs: int = text.count("\t" if isinstance(text, str) else b"\t")
    return length(text) + tabs * count(more.get("tabsize", tab_size))


def _translate(budget: Budget, text: Any, table: Any, *rest: Any) -> int:
    del rest
    return length(text) * (1 + budget.weight(table))


def _split(budget: Budget, text: Any, separator: Any = None, *rest: Any, **more: Any) -> int:
    del budget, rest
    separator = more.get("sep", separator)
    pieces: int = text.count(separator) if separator else length(text) // 2
    return length(text) + PLACE * pieces


def _join(budget: Budget, separator: Any, values: Any = (), *rest: Any) -> int:
    del rest
    return budget.weight(values) + length(separator) * length(values)


def _to_bytes(budget: Budget, number: Any, size: Any = 1, *rest: Any, **more: Any) -> int:
    del budget, number, rest
    return count(more.get("length", size))


#: Of str, bytes and int; the first argument is the text or number itself.
METHODS: Mapping[str, Rule] = {
    "center": _width,
    "expandtabs": _expand_tabs,
    "join": _join,
    "ljust": _width,
    "replace": _replace,
    "rjust": _width,
    "rsplit": _split,
    "split": _split,
    "splitlines": lambda budget, text, *_, **__: length(text) * (1 + PLACE),
    "to_bytes": _to_bytes,
    "translate": _translate,
    "zfill": _width,
}


def _indent(budget: Budget, text: Any, width: Any = 4, *rest: Any, **more: Any) -> int:
    del budget, rest
    width = more.get("width", width)
    lines = 1 + (text.count("\n") if isinstance(text, str) else length(text))
    return length(text) + lines * max(count(width), length(width))


def _wrap(budget: Budget, text: Any, *rest: Any, **more: Any) -> int:
    given = max(map(length, (*rest, *more.values())), default=0)
    return _slow(budget, text) + length(text) * (1 + given)


def _join_filter(budget: Budget, values: Any, separator: Any = "", *rest: Any, **more: Any) -> int:
    del rest
    return _join(budget, more.get("d", separator), values)


def _format(budget: Budget, form: Any, *values: Any, **named: Any) -> int:
    return percent(budget, str(form), named or values)


def _to_json(budget: Budget, value: Any, *rest: Any, **more: Any) -> int:
    size = budget.size(value)
    given = (*rest, *more.values())
    indent = max((max(count(option), length(option)) for option in given), default=0)
    return size.text + size.places * (PLACE + indent * (1 + size.depth))


def _slices(budget: Budget, values: Any, number: Any = 0, *rest: Any, **more: Any) -> int:
    del budget, rest
    return length(values) + PLACE * max(map(count, (number, *more.values())))


def _list(budget: Budget, values: Any, *rest: Any) -> int:
    del budget, rest
    return PLACE * length(values)


def _slow(budget: Budget, text: Any, *rest: Any, **more: Any) -> int:
    """What takes time with the square of its input: as much as a text of 65,536 characters."""
    del rest, more
    return budget.weight(text) ** 2 >> 8


#: Of jinja2; the first argument is the value filtered.
FILTERS: Mapping[str, Rule] = {
    "batch": _slices,
    "center": _width,
    "format": _format,
    "indent": _indent,
    "join": _join_filter,
    "list": _list,
    "pprint": _slow,
    "replace": _replace,
    "slice": _slices,
    "striptags": _slow,
    "tojson": _to_json,
    "urlize": _slow,
    "wordwrap": _wrap,
    "xmlattr": lambda budget, value, *_: 8 * budget.weight(value),
}
