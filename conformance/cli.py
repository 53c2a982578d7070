"""The `lockstep` command: the engine's commands and those that judge an engine.

Exit status: 0 conforms, 1 diverges, 2 the request or the environment is at fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from engine.cli import app
from engine.cli.inspect import BESIDE
from engine.cli.shared import Device, Dtype, Model
from engine.command import atomically, check_writable, json_text, run
from engine.errors import RequestError

golden = typer.Typer(help="The oracle's goldens: make, verify, list.", no_args_is_help=False)
app.add_typer(golden, name="golden")

Json = Annotated[
    Path | None, typer.Option("--json", help="Write the report here; - is standard output.")
]
Cases = Annotated[
    list[str] | None, typer.Argument(metavar="[CASE]...", help="All, if none is named.")
]


def _reference(*asked: str) -> dict[str, dict[str, float]]:
    from conformance.bench.beside import reference

    return reference(*asked)


BESIDE["transformers"] = _reference


class _BareSince(TyperCommand):
    """Lets `--since` stand without a value, which the options of typer cannot: it means HEAD then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--since" in args:
            at = args.index("--since")
            after = args[at + 1 :]
            if not after or after[0].startswith("-"):
                args = [*args[:at], "--since=HEAD", *after]
        return super().parse_args(ctx, args)


@app.command(cls=_BareSince)
def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Goldens or folders of them, a failure capsule, or a MODEL to check: against --golden, live transformers, or its "
            "committed golden. Without TARGET, every committed golden is checked.",
        ),
    ] = None,
    golden: Annotated[Path | None, typer.Option(help="The golden's folder.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    level: Annotated[str, typer.Option(help="How deep to look: L0 text to L5 cache.")] = "L5",
    candidate: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Judge another engine, by its factory."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="Judge this engine on one backend: eager, tiled, sdpa, flash or flex."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Compare the engine of a git revision with the working tree's, bit by bit and by "
            "envelope. Without a value: HEAD.",
        ),
    ] = None,
    json_file: Json = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page.")] = None,
    capsule: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Cut the first failure down to a folder that shows it again."
        ),
    ] = None,
) -> None:
    """Run the engine in lockstep with the reference and name the operation that is wrong."""
    _check_writable(json_file, html)
    if since is not None:
        others = {
            "--golden": golden,
            "--level": None if level == "L5" else level,
            "--candidate": candidate,
            "--backend": backend,
            "--html": html,
            "--capsule": capsule,
        }
        given = [option for option, value in others.items() if value is not None]
        if given:
            raise RequestError(f"{given[0]} does not go with --since, which compares two engines")
        from conformance.since.compare import compare_with
        from conformance.since.terminal import print_diff

        with _progress() as say:
            diff = compare_with(since, targets or [], device=device, dtype=dtype, say=say)
        _deliver(diff, json_file, print_diff)
    from conformance.capsule import Packer
    from conformance.check import ENGINE, run_check
    from conformance.report import print_report, write_html

    if backend is not None:
        from conformance import kernel_candidates

        if candidate is not None:
            raise RequestError("--backend is of this engine and does not go with --candidate")
        candidate = kernel_candidates.named(backend)
    packer = None if capsule is None else Packer(capsule)
    with _progress() as say:
        report = run_check(
            targets or [],
            golden,
            device=device,
            dtype=dtype,
            level=level,
            candidate=candidate or ENGINE,
            say=say,
            packer=packer,
        )
    if packer is not None:
        print(packer.says, file=sys.stderr)
    if html is not None:
        with atomically(html) as draft:
            write_html(report, draft)
    _deliver(report, json_file, print_report)


@app.command()
def mutants(
    family: Annotated[str | None, typer.Option(help="Only this family's faults.")] = None,
    json_file: Json = None,
) -> None:
    """Break the engine on purpose, fault by fault, and see whether the check notices and where."""
    _check_writable(json_file)
    from conformance.mutants import print_mutants, run_mutants

    with _progress() as say:
        report = run_mutants(family, say)
    _deliver(report, json_file, print_mutants)


@app.command()
def invariance(
    model: Annotated[
        list[str] | None, typer.Option(help="Only cells of this tiny golden; may be repeated.")
    ] = None,
    cells: Annotated[int, typer.Option(min=1, help="How many cells to play, at least.")] = 200,
    json_file: Json = None,
    html: Annotated[Path | None, typer.Option(help="Write the matrix as a page.")] = None,
) -> None:
    """Cut, pack, page, share, pre-empt and resume requests, and hold each against its naive run."""
    _check_writable(json_file, html)
    from conformance.invariance.axes import of_models
    from conformance.invariance.covering import covering
    from conformance.invariance.page import write_html as write_page
    from conformance.invariance.run import run_matrix
    from conformance.invariance.terminal import print_matrix

    with _progress() as say:
        matrix = run_matrix(covering(cells, of_models(model or [])), say)
    if html is not None:
        with atomically(html) as draft:
            write_page(matrix, draft)
    _deliver(matrix, json_file, print_matrix)


@app.command()
def bench(
    model: Model,
    against: Annotated[
        str | None, typer.Option(help="Whom to time in turns with this engine: transformers.")
    ] = None,
    forms: Annotated[
        str | None,
        typer.Option(
            help="Of this engine or transformers, separated by commas: eager, compiled, compiled+float16, "
            "compiled+int8, transformers, transformers-compiled.",
            show_default="eager and compiled",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="In each of them every form has its turn.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, to try it out or for a tiny model.")
    ] = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="Time and memory of each stage.")
    ] = False,
    growth: Annotated[
        bool, typer.Option("--growth", help="Time against context, prompt and batch.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the growth into this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="OLD.json", help="Status 1 if a ratio fell since that run's document."
        ),
    ] = None,
    serving: Annotated[
        bool,
        typer.Option(
            "--serving",
            help="Instead: how a server holds up against requests that come at fixed rates.",
        ),
    ] = False,
    rates: Annotated[
        str | None,
        typer.Option(
            help="With --serving: requests a second, separated by commas.",
            show_default="0.5, 1, 1.5",
        ),
    ] = None,
    step_tokens: Annotated[
        str | None,
        typer.Option(
            help="With --serving: tokens of a pass; of several, separated by commas, each is timed.",
            show_default="the server's",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of each process.", show_default="torch's choice")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Say how fast a model runs, beside transformers and beside what the machine allows."""
    _check_writable(svg, markdown)
    named = None if forms is None else [name.strip() for name in forms.split(",")]
    if serving:
        others = {
            "--against": against,
            "--stages": stages,
            "--growth": growth,
            "--svg": svg,
            "--compare": compare,
        }
        if given := [option for option, value in others.items() if value]:
            raise RequestError(f"{given[0]} does not go with --serving, which times a server")
        from conformance.bench.serving.run import asked_for, run_serving
        from conformance.bench.serving.show import markdown as served_as_markdown
        from conformance.bench.serving.show import print_served

        asked = asked_for(model, named, rates, step_tokens, quick, dtype, device, threads)
        with _progress() as say:
            served = run_serving(asked, say)
        if markdown is not None:
            with atomically(markdown) as draft:
                draft.write_text(served_as_markdown(served), encoding="utf-8")
        _deliver(served, Path("-") if as_json else None, print_served)
    if rates is not None or step_tokens is not None:
        raise RequestError("--rates and --step-tokens are those of --serving")
    if svg is not None and not growth:
        raise RequestError("--svg draws the growth: add --growth")
    from conformance.bench.markdown import markdown as as_markdown
    from conformance.bench.plot import growth_svg
    from conformance.bench.run import Wanted, run_bench
    from conformance.bench.scenarios import QUICK, USUAL
    from conformance.bench.terminal import print_bench

    wanted = Wanted(
        model,
        against=against,
        forms=named,
        dtype=dtype,
        device=device,
        threads=threads,
        rounds=rounds,
        sizes=QUICK if quick else USUAL,
        stages=stages,
        growth=growth,
        compare=compare,
    )
    with _progress() as say:
        found = run_bench(wanted, say)
    if svg is not None and found.growth is not None:
        with atomically(svg) as draft:
            draft.write_text(growth_svg(found.growth), encoding="utf-8")
    if markdown is not None:
        with atomically(markdown) as draft:
            title = "growth" if growth else "how fast"
            draft.write_text(as_markdown(found.to_json(), title), encoding="utf-8")
    _deliver(found, Path("-") if as_json else None, print_bench)


@golden.command()
def capture(
    cases: Cases = None,
    out: Annotated[Path | None, typer.Option(help="Instead of the committed folder.")] = None,
) -> None:
    """Make goldens from transformers (the `oracle` extra); the engine has no hand in it."""
    from conformance.goldens import capture

    with _progress() as say:
        made = capture(cases or [], out, say)
    for folder in made:
        print(folder)


@golden.command()
def verify(
    cases: Cases = None,
    false_alarms: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Instead: judge N legal variants of the reference and of the engine, and count alarms.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the variants that are drawn.")] = 0,
    json_file: Json = None,
) -> None:
    """Make goldens again in a temporary folder and compare them with the committed ones."""
    _check_writable(json_file)
    if false_alarms is not None:
        from conformance.false_alarms import measure

        with _progress() as say:
            alarms = measure(cases or [], false_alarms, seed, say)
        _deliver(alarms, json_file, lambda found, console: print(found))
    from conformance.goldens import verify
    from conformance.verification import print_verification

    with _progress() as say:
        report = verify(cases or [], say)
    _deliver(report, json_file, print_verification)


@golden.command()
def power(cases: Cases = None, json_file: Json = None) -> None:
    """Measure how small a fault each probe still notices, beside the noise that it must not notice."""
    _check_writable(json_file)
    from conformance.power import measure, print_power

    with _progress() as say:
        strengths = measure(cases or [], say)
    _deliver(strengths, json_file, print_power)


@golden.command(name="list")
def list_() -> None:
    """Name the committed goldens and what each is for."""
    from rich.console import Console

    from conformance.goldens import listing

    Console().print(listing())


def _check_writable(*files: Path | None) -> None:
    for file in files:
        if file is not None and str(file) != "-":
            check_writable(file)


def _deliver(report: Any, json_file: Path | None, show: Callable[[Any, Any], None]) -> NoReturn:
    """Prints the report, writes its JSON, and leaves with its status."""
    from rich.console import Console

    if str(json_file) == "-":
        print(json_text(report.to_json()))
        raise typer.Exit(report.exit_status)
    if json_file is not None:  # first: whoever reads the terminal's part may leave early
        with atomically(json_file) as draft:
            draft.write_text(json_text(report.to_json(), indent=1) + "\n", encoding="utf-8")

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with 1, which is a verdict here

    console = Piped()
    # A pipe has no width of its own, and 80 columns break the names of probes.
    show(report, console if console.is_terminal else Piped(width=120))
    raise typer.Exit(report.exit_status)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is going on: in place on a terminal, line by line elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda message: status.update(Text(message))
    else:
        yield lambda message: console.print(message, style="dim", markup=False, highlight=False)


def main() -> None:
    """The script `lockstep`."""
    sys.exit(run(app, "lockstep", sys.argv[1:] or ["--help"]))
