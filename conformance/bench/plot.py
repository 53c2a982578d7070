"""The growth drawn as one SVG: three panels on plain axes, a colour for each form, the limits dashed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from conformance.bench.growth import Growth, Point

#: Readable on white by those who do not tell red from green (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_WIDTH, _HEIGHT = 300, 220  # of the space between the axes
_LEFT, _TOP, _GAP, _BOTTOM = 60, 34, 76, 84
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}"
    ".a{stroke:#222;fill:none}.g{stroke:#ddd}.l{fill:none;stroke-width:2}"
)


def growth_svg(growth: Growth) -> str:
    """A picture that needs nothing beside it."""
    panels = (
        ("A step, by tokens in view", growth.steps, 1e3, "ms"),
        ("A prompt, by its length", growth.prefills, 1.0, "s"),
        ("A step, by answers at once", growth.batches, 1e3, "ms"),
    )
    forms = list(growth.lines)
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>Time against size, of {escape(', '.join(forms))}</title>",
        f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for i, (title, points, factor, unit) in enumerate(panels):
        parts.append(f'<g transform="translate({_LEFT + i * (_WIDTH + _GAP)} {_TOP})">')
        parts += _panel(title, points, factor, unit, forms)
        parts.append("</g>")
    parts += [*_legend(forms, height - 18), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(
    title: str, points: Sequence[Point], factor: float, unit: str, forms: Sequence[str]
) -> Iterator[str]:
    wide = max(point.size for point in points)
    high = factor * max(max(point.seconds, point.limit) for point in points)

    def at(size: float, value: float) -> tuple[float, float]:
        return round(_WIDTH * size / wide, 1), round(_HEIGHT * (1 - factor * value / high), 1)

    yield f'<text class="t" x="0" y="-14">{title}</text>'
    for tick in ticks(high):
        y = round(_HEIGHT * (1 - tick / high), 1)
        yield f'<path class="g" d="M0 {y}H{_WIDTH}"/>'
        yield f'<text x="-6" y="{y + 4}" text-anchor="end">{tick:g}</text>'
    yield f'<text x="-6" y="-14" text-anchor="end">{unit}</text>'
    for tick in ticks(wide):
        x = round(_WIDTH * tick / wide, 1)
        yield f'<text x="{x}" y="{_HEIGHT + 18}" text-anchor="middle">{tick:,g}</text>'
    yield f'<path class="a" d="M0 0V{_HEIGHT}H{_WIDTH}"/>'
    for form, colour in zip(forms, _colours(forms), strict=True):
        own = sorted((p for p in points if p.form == form), key=lambda point: point.size)
        measured = [at(point.size, point.seconds) for point in own]
        yield f'<path class="l" stroke="{colour}" d="{_path(measured)}"/>'
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in measured)
        limit = _path([at(point.size, point.limit) for point in own])
        yield f'<path class="l" stroke="{colour}" stroke-dasharray="3 4" d="{limit}"/>'


def _legend(forms: Sequence[str], y: int) -> Iterator[str]:
    x = _LEFT
    for form, colour in zip(forms, _colours(forms), strict=True):
        yield f'<path class="l" stroke="{colour}" d="M{x} {y - 4}h24"/>'
        yield f'<text x="{x + 30}" y="{y}">{escape(form)}</text>'
        x += 60 + 8 * len(form)
    yield f'<path class="l" stroke="#222" stroke-dasharray="3 4" d="M{x} {y - 4}h24"/>'
    yield f'<text x="{x + 30}" y="{y}">what the machine allows</text>'


def _colours(forms: Sequence[str]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(forms))]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def ticks(most: float) -> list[float]:
    """Round numbers from 0 on, about five of them."""
    rough = most / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]
