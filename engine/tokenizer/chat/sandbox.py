"""Runs a chat template as transformers does, where it can reach nothing and has to end.

Templates come with the model and are not trusted. They run in jinja2's immutable sandbox, set up
as Hugging Face's templates expect (blocks trimmed, loop controls, `tojson` without HTML escapes),
and on a budget: every statement, turn of a loop, call and text made is counted as it happens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import CodeType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engine.tokenizer.chat.budget import TEXT, Budget, TooMuchError
from engine.tokenizer.chat.growth import FILTERS, METHODS, count, length, numbers, percent

# Names of filters that no template can write.
_STEP, _MADE, _SHOWN, _WRITES = " step", " made", " shown", " writes"
# Filters that take a list item by item, each of which may take its time.
_LAZY = frozenset(("map", "select", "reject", "selectattr", "rejectattr", "sum"))

# What printing a namespace counts for: those within it are found as they are printed.
_NAMESPACE = 4096


class Program:
    """One compiled template."""

    def __init__(self, source: str) -> None:
        """Raises jinja2.TemplateSyntaxError, or what the compiler of Python has to say."""
        environment = _Environment(Budget())
        tree = environment.parse(source)
        self.source = source
        self.literals = tuple(_literals(tree))
        self._code: CodeType = environment.compile(_Counted().visit(tree))

    def run(self, variables: Mapping[str, Any], now: datetime) -> tuple[str, list[tuple[int, int]]]:
        """Return the text, and the [start, end) stretches inside of generation blocks.

        `now` is the time of day that the template is told. Raises TooMuchError, or whatever the
        template raises.
        """
        environment = _Environment(Budget())
        environment.globals["strftime_now"] = partial(_strftime, environment.budget, now)
        template = jinja2.Template.from_code(
            environment, self._code, environment.make_globals(None)
        )
        pieces = []
        for piece in template.generate(variables):
            pieces.append(piece)
            environment.written += len(piece)
            if environment.written > TEXT:
                raise TooMuchError(f"writes more than {TEXT >> 20} million characters")
        return "".join(pieces), environment.generated


def _literals(tree: nodes.Template) -> Iterator[str]:
    """Yield all text that a template holds: what it writes, and what it compares with."""
    for data in tree.find_all(nodes.TemplateData):
        yield data.data
    for const in tree.find_all(nodes.Const):
        if isinstance(const.value, str):
            yield const.value


class _Counted(NodeTransformer):
    """Puts a step before every statement, and a count around all that makes or shows a value."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        branches: list[nodes.If] = []
        if isinstance(node, nodes.If):  # its elifs are no statements of their own
            branches, node.elif_ = node.elif_, []
        self.generic_visit(node)
        match node:
            case nodes.If():
                node.elif_ = [self.visit(branch)[1] for branch in branches]
            case nodes.Output() | nodes.Concat():
                node.nodes = [_shown(child) for child in node.nodes]
            case nodes.Compare():
                node.expr = _filter(node.expr, _STEP)
            case nodes.Tuple(ctx=context) if context != "load":
                return node
            case nodes.List() | nodes.Tuple() | nodes.Dict():
                return _filter(node, _MADE)
        if isinstance(node, nodes.Stmt) and not isinstance(node, (nodes.Extends, nodes.Block)):
            outputs = node.nodes if isinstance(node, nodes.Output) else []
            written = sum(len(str(_constant(child))) for child in outputs if _is_constant(child))
            step = _filter(nodes.Const(written, lineno=node.lineno), _WRITES)
            return [nodes.ExprStmt(step, lineno=node.lineno), node]
        return node


def _shown(node: nodes.Expr) -> nodes.Expr:
    return node if _is_constant(node) else _filter(node, _SHOWN)


def _constant(node: nodes.Node) -> Any:
    return node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", "")


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.TemplateData, nodes.Const))


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The surroundings of one rendering."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.budget = budget
        self.written = 0
        self.generated: list[tuple[int, int]] = []
        self.filters["tojson"] = _to_json
        self.filters = {name: self._counted(name, f) for name, f in self.filters.items()}
        self.filters |= {_STEP: self._step, _MADE: self._made}
        self.filters |= {_SHOWN: self._shown, _WRITES: self._writes}
        del self.globals["lipsum"]  # random words are no part of a conversation
        self.globals["raise_exception"] = _raise_exception
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _namespace(budget)

    @pass_context
    def _step(self, context: Context, value: Any) -> Any:
        self.budget.step()
        return value

    @pass_context
    def _writes(self, context: Context, size: int) -> None:
        """Count a statement, and the characters of the template that it writes."""
        self.budget.step()
        self.budget.spend(size)

    @pass_context
    def _made(self, context: Context, value: Any) -> Any:
        return self.budget.made(value)

    @pass_context
    def _shown(self, context: Context, value: Any) -> Any:
        """Count a value that is about to be written out."""
        if isinstance(value, str):
            self.budget.spend(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.budget.spend(self.budget.weight(value))
        return value

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that is refused where it would make too much."""
        passed = getattr(function, "jinja_pass_arg", None)
        first = 0 if passed is None else 1
        rule = FILTERS.get(name)

        def counted(*given: Any, **named: Any) -> Any:
            self.budget.step()
            before, value, arguments = given[:first], given[first], given[first + 1 :]
            if name in ("join", "list") and not isinstance(value, (str, bytes)) and value:
                value = list(self.budget.steps(value))
            elif name in _LAZY and value:
                value = self.budget.steps(value)
            if rule is not None:
                self.budget.room_for(rule(self.budget, value, *arguments, **named))
            if name == "round":
                digits = max(map(count, (*arguments, *named.values())), default=0)
                self.budget.room_for_bits(4 * digits)
            return self.budget.made(function(*before, value, *arguments, **named))

        if passed is not None:
            counted.jinja_pass_arg = passed  # type: ignore[attr-defined]
        return counted

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do one of the operators that can make much of little."""
        budget = self.budget
        if isinstance(left, (str, bytes)) and operator == "%":
            budget.room_for(percent(budget, left, right))
        elif isinstance(left, int) and isinstance(right, int):
            if operator == "*":
                budget.room_for_bits(left.bit_length() + right.bit_length())
            elif operator == "**":
                budget.room_for_bits(left.bit_length() * max(right, 0))
        elif operator == "*":
            number = next((side for side in (left, right) if isinstance(side, int)), 0)
            budget.room_for(max(number, 0) * (budget.weight(left) + budget.weight(right)))
        elif operator == "+":
            budget.room_for(length(left) + length(right))
        return budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *given: Any, **named: Any) -> Any:
        """Call what a template calls."""
        self.budget.step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            name = getattr(function, "__name__", "")
            if name == "join" and len(given) == 1:
                given = (list(self.budget.steps(given[0])),)
            if name in METHODS:
                self.budget.room_for(METHODS[name](self.budget, owner, *given, **named))
        return self.budget.made(super().call(context, function, *given, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed `format` or `format_map` of a text, None for anything else."""
        if super().wrap_str_format(value) is None:
            return None

        def bounded(*given: Any, **named: Any) -> str:
            if value.__name__ == "format_map":
                ((named,), given) = (given, ())
            return _Formatter(self).vformat(value.__self__, given, named)

        return bounded


class _Formatter(SandboxedFormatter):
    """Fills in a text's fields, on the budget of the rendering."""

    def __init__(self, environment: _Environment) -> None:
        super().__init__(environment)
        self._budget = environment.budget

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._budget.room_for(numbers(format_spec))
        if isinstance(value, (list, tuple, dict)):
            self._budget.weight(value)
        return self._budget.made(super().format_field(value, format_spec))


class _Generation(Extension):
    """The tag {% generation %}, which marks the assistant's own words in a conversation."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)
    environment: _Environment

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Macro) -> str:
        text: str = caller()
        start = self.environment.written
        self.environment.generated.append((start, start + len(text)))
        return text


class _Dict:
    """The function `dict` without the attributes of the type."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _namespace(budget: Budget) -> type[Namespace]:
    class Counted(Namespace):
        """Attributes that blocks can set, none of them with a leading underscore."""

        def __init__(*given: Any, **named: Any) -> None:
            (self, *rest) = given
            attributes = dict(*rest, **named)
            for name in attributes:
                _check_name(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

        def __repr__(self) -> str:
            budget.step()
            budget.spend(_NAMESPACE)
            return str(budget.made(super().__repr__()))

    return Counted


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace has no attributes with a leading underscore, such as {name!r:.60}"
        )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime(budget: Budget, now: datetime, form: str) -> str:
    budget.room_for(numbers(form))
    return now.strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
