"""The pictures of docs/tutorial.md: drawings of what was measured, as small SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """<style>text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1b1d22}.q{fill:#5c6068}.m{font-family:ui-monospace,Menlo,Consolas,monospace}</style>"""


def drawing(width: int, height: int, parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n{STYLE}<rect width="{width}" height="{height}" fill="#fcfbf9"/>\n{body}\n</svg>\n'
    )


def label(text: str) -> str:
    shown = text.replace(" ", "·").replace("\n", "↵")
    return escape(shown if shown.isprintable() else repr(shown)[1:-1])


def text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{said}</text>'


def bars(rows: Mapping[str, Sequence[tuple[str, float]]], title: str) -> str:
    """The likeliest next tokens of one run, or of two beside each other."""
    parts: list[str] = []
    for n, (name, candidates) in enumerate(rows.items()):
        left = 20 + n * 340
        parts.append(text(left, 24, escape(name), "q"))
        for i, (token, share) in enumerate(candidates):
            y = 48 + i * 24
            hue = "#9a3b1b" if i == 0 else "#1d5c8f"
            parts.append(text(left, y, label(token)[:40], "m"))
            parts.append(
                f'<rect x="{left + 92}" y="{y - 9}" width="{max(1, share * 150):.1f}" height="10" fill="{hue}"/>'
            )
            said = f"{share:.1%}" if share >= 0.0005 else f"{share:.1e}"
            parts.append(text(left + 305, y, said, "", "end"))
    return drawing(20 + len(rows) * 340, 60 + 24 * 5 - 12, parts, title)


def maps(rows: Mapping[str, Sequence[Sequence[int]]], names: Sequence[str], title: str) -> str:
    """What a head looks at, before and after: rows look at columns."""
    parts: list[str] = []
    size = 30
    for n, (name, values) in enumerate(rows.items()):
        left, top = 90 + n * 290, 84
        parts.append(text(left, 22, escape(name), "q"))
        for r, row in enumerate(values):
            parts.append(text(left - 6, top + r * size + 19, label(names[r]), "m", "end"))
            parts.append(
                f'<text class="m" transform="translate({left + r * size + 18} {top - 6}) rotate(-50)">{label(names[r])}</text>'
            )
            for c, value in enumerate(row):
                light = 1 - (value / 10_000) ** 0.5
                colour = "#" + "".join(
                    f"{round(a + (b - a) * light):02x}"
                    for a, b in ((18, 241), (80, 239), (127, 234))
                )
                parts.append(
                    f'<rect x="{left + c * size}" y="{top + r * size}" width="{size - 1}" height="{size - 1}" fill="{colour}"><title>{value / 100:.2f} %</title></rect>'
                )
    width = 90 + (len(rows) - 1) * 290 + size * len(names) + 40
    return drawing(width, 84 + size * len(names) + 20, parts, title)


def lens_picture(path: Mapping[str, Any]) -> str:
    """The likeliest token after each layer, and where the chosen one stood."""
    parts = [
        text(20, 22, "after", "q"),
        text(110, 22, "would say", "q"),
        text(420, 22, "number of “ Paris”", "q", "end"),
    ]
    for n, (token, share, rank) in enumerate(path["lens"]):
        y = 44 + n * 17
        name = "embedding" if n == 0 else f"layer {n - 1}"
        hue = "#9a3b1b" if rank == 0 else "#1d5c8f"
        parts.append(text(20, y, name, "q"))
        parts.append(text(110, y, label(token), "m"))
        parts.append(
            f'<rect x="200" y="{y - 9}" width="{max(1, share * 110):.1f}" height="10" fill="{hue}"/>'
        )
        parts.append(text(420, y, f"{rank + 1:,}", "", "end"))
    return drawing(440, 44 + 17 * len(path["lens"]) + 4, parts, "The logit lens, layer by layer")


def merges_picture(path: Mapping[str, Any]) -> str:
    """A word's symbols, and what each merge makes of them."""
    rows, symbols = [list(path["symbols"])], list(path["symbols"])
    for _, made in path["merges"]:
        at = next(i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] == made)
        symbols[at : at + 2] = [made]
        rows.append(list(symbols))
    parts = []
    for n, row in enumerate(rows):
        y, x = 20 + n * 34, 20.0
        for symbol in row:
            width = 12 + 8.2 * len(symbol)
            new = n > 0 and symbol == path["merges"][n - 1][1]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" rx="4" fill="{"#f5e3c8" if new else "#ffffff"}" stroke="{"#9a3b1b" if new else "#dedbd5"}"/>'
            )
            parts.append(text(x + width / 2, y + 16, escape(symbol), "m", "middle"))
            x += width + 5
        said = "symbols" if n == 0 else f"merge {n}, rank {path['merges'][n - 1][0]:,}"
        parts.append(text(300, y + 16, said, "q"))
    return drawing(460, 26 + 34 * len(rows), parts, "The merges of “ capital”")
