"""Templates are not trusted: each must reach nothing, change nothing, end soon and stay small."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from engine.errors import RequestError
from engine.tokenizer.chat import budget
from engine.tokenizer.chat.template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]


def render(template: str) -> str:
    return ChatTemplate({"default": template}, {}, "test").render(HELLO).text


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '%s' | attr('__class__') }}{{ ''|attr('__class__')|attr('__mro__')|first }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% include 'x' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ lipsum() }}",
    ],
)
def test_a_template_reaches_nothing_and_changes_nothing(template: str) -> None:
    with pytest.raises(RequestError):
        render(template + "{{ raise_exception('it is undefined') }}")
    assert HELLO == [{"role": "user", "content": "hello"}]


BOMBS = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 2 ** 99999999 }}",
    "{{ 99999 ** 999 * 99999 ** 999 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%0000000000000999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.999999999f' | format(1.5) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '{x:>999999999}'.format_map({'x': 1}) }}",
    "{{ 'a'.center(10**9) }}{{ 'a'.zfill(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a\tb'.expandtabs(10**9) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ 'aaa'.translate({97: 'b' * 10**7}) }}",
    "{{ ('b' * 100000).join('a' * 100000) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | indent(10**9, true) }}",
    "{{ 'a b' | wordwrap(1, wrapstring='z' * 10**7) }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ (['a' * 100000] * 100000) | join }}",
    "{{ range(100000) | join('b' * 100000) }}",
    "{{ [1] | batch(10**9, 1) | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ [[1]] | tojson(indent=10**9) }}",
    "{{ [[1], 2] | tojson(indent='a' * 10**7, separators=('b' * 10**7, ':')) }}",
    "{{ 1.5 | round(10**9, 'ceil') }}",
    "{{ ('<!--' * 1000000 + '-->' * 1000000) | striptags }}",
    "{{ ('a' * 10**7) | list }}",
    "{{ ('a' * 10**7).split() | length }}{{ ('a\n' * 10**7).splitlines() | length }}",
    "{{ strftime_now('%0999999999d') }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}",
    "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = (n.x,) %}{% endfor %}",
    "{% set n = namespace() %}{% for i in range(99) %}{% set n.x = namespace(a=n.x, b=n.x) %}{{ n }}{% endfor %}",
    "{% macro f() %}{% for i in range(9999) %}{{ 'a' * 10**7 }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% set x %}{% for i in range(99999) %}" + "a" * 10_000 + "{% endfor %}{% endset %}",
    "{% for i in range(99999) %}" + "a" * 10_000 + "{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_a_bomb_is_refused_before_it_is_made(template: str) -> None:
    """One error, and at no time more memory than half a gigabyte."""
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=r"was stopped on this|refuses this conversation"):
            render(template)
        assert tracemalloc.get_traced_memory()[1] < 1 << 29
    finally:
        tracemalloc.stop()


ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% set x = range(99999) | list %}{{ x | select('in', x | reverse | list) | list | length }}",
    "{% for a in [[[[]] * 40] * 40] * 40 recursive %}{{ loop(a) }}{% endfor %}" * 9,
    "{% for i in range(99999) %}{% call(x) f() %}{% endcall %}{% endfor %}",
    "{% set s = 'a' * 10**6 %}{% for i in range(99999) %}{% set y = s in s + 'b' %}{% endfor %}",
]


@pytest.mark.parametrize("template", ENDLESS)
def test_a_template_that_does_not_end_is_stopped(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it writes nothing, and on a thread that is not the first."""
    monkeypatch.setattr(budget, "SECONDS", 0.05)
    template = "{% macro f() %}{{ caller(1) }}{% endmacro %}" * ("call(x)" in template) + template
    errors: list[RequestError] = []

    def attempt() -> None:
        try:
            render(template)
        except RequestError as error:
            errors.append(error)

    started = time.monotonic()
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "works for more than" in str(errors)
    assert time.monotonic() - started < 30


def test_the_limit_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SECONDS", 0.05)
    with pytest.raises(RequestError, match=r"was stopped .* works for more than 0\.05 seconds"):
        render(ENDLESS[0])


def test_nested_brackets_are_the_files_fault() -> None:
    """A parser that calls itself runs out of stack: an error, not the end of the process."""
    with pytest.raises(RequestError, match="no valid jinja"):
        ChatTemplate({}, {}, "test").render(HELLO, chat_template="{{ " + "(" * 5000)


def test_a_long_conversation_is_no_bomb() -> None:
    """A thousand messages of a thousand characters, taken apart and put together again."""
    messages = [{"role": "user", "content": f"{i} " * 250} for i in range(1000)]
    template = (
        "{% set ns = namespace(last='') %}{% for message in messages %}"
        "{% set ns.last = '<' ~ message.content.split(' ')[0] + message.content | trim + '>' %}"
        "{{ ns.last.replace('>', '>\n') }}{% endfor %}"
    )
    text = ChatTemplate({"default": template}, {}, "test").render(messages).text
    assert len(text) > 900_000
