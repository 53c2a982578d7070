"""Everything that wants a GPU, in one run of ten minutes, from a checkout and without installing anything.

    python -m conformance.bench.gpu --out DIR [--shape 1b] [--minutes 10] [--parts bench,flash ...]

judges the engine on the GPU in float32 (without TF32), bfloat16 and float16, on flash, flex and tiled attention,
and compiled (as CUDA graphs); and times it against transformers on a random model of Llama's shape. Each part has a
share of the time, and one that fails or takes too long is reported, and does not keep the others from
running. DIR gets gpu.json, gpu.md and each part's output; they are written after every part.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.bench.markdown import markdown
from conformance.bench.random_llama import SHAPES
from conformance.cases import CASES
from conformance.process import ROOT

#: Goldens that graphs are compiled for, a minute each at most: a plain one, windows, experts, latents.
FEW = ("llama-gqa", "gemma3", "gpt-oss", "deepseek-v3")
FORMS = "transformers,transformers-compiled,eager,compiled"


@dataclass(frozen=True)
class Part:
    """A command of this project, `weight` of the whole time for it, and the JSON that it leaves, if any."""

    name: str
    command: tuple[str, ...]
    weight: float
    document: str | None = None


@dataclass(frozen=True)
class Done:
    """How a part ended: passed, failed, or out of time; `says` are its last words."""

    name: str
    outcome: str
    seconds: float
    says: str
    document: Any = None


def parts(
    out: Path,
    device: str,
    shape: str,
    goldens: Sequence[str] = (),
    forms: str = FORMS,
    rounds: int = 3,
) -> list[Part]:
    """All there are, in the order in which they run: graphs come last, as they may take minutes."""

    goldens = goldens or _of_each_family()

    def check(name: str, weight: float, *options: str, cases: Sequence[str] = goldens) -> Part:
        folders = [str(ROOT / "golden" / case) for case in cases]
        command = ("conformance", "check", *folders, "--device", device, *options)
        return Part(name, (*command, "--json", str(out / f"{name}.json")), weight, f"{name}.json")

    def timed(name: str, weight: float, *options: str) -> Part:
        command = ("conformance", "bench", str(out / "model"), "--device", device, *options)
        quick = ("--quick",) if shape == "tiny" else ()
        return Part(name, (*command, *quick, "--json"), weight, f"{name}.out")

    tests = ("tests/conformance/test_edit_check.py", "tests/conformance/test_goldens.py")
    spread = ("-n", "8") if device == "cuda" and importlib.util.find_spec("xdist") else ()
    # Real models are not there: no part may wait for a network.
    offline = ("-k", "not smollm2 and not a_real_tokenizer", "-p", "no:cacheprovider")
    dtype = "bfloat16" if device == "cuda" else "float32"
    model = ("conformance.bench.gpu", "--write", str(out / "model"), "--shape", shape)
    few = [name for name in FEW if name in goldens]
    return [
        Part("tests", ("pytest", "-q", *spread, *offline, *tests, "--lockstep-device", device), 4),
        check("float32", 2, "--dtype", "float32"),
        check("bfloat16", 2, "--dtype", "bfloat16"),
        check("float16", 2, "--dtype", "float16"),
        check("flash", 1, "--backend", "flash", "--dtype", dtype),
        check("flex", 2, "--backend", "flex", "--dtype", dtype),
        check("tiled", 1, "--backend", "tiled", "--dtype", dtype),
        Part("model", (*model, "--device", device, "--dtype", dtype), 1),
        timed("bench", 8, "--forms", forms, "--dtype", dtype, "--rounds", str(rounds)),
        timed("growth", 3, "--forms", "eager", "--dtype", dtype, "--rounds", "1", "--growth"),
        check("compiled", 4, "--candidate", "conformance.compiled_candidate:candidates", cases=few),
    ]


def _of_each_family() -> list[str]:
    """The first golden of every family; the tests judge all of them."""
    return list({case.family: case.name for case in reversed(CASES)}.values())


def run_parts(chosen: Sequence[Part], out: Path, minutes: float) -> list[Done]:
    """One after another; what a part leaves of its share is there for those after it."""
    deadline, left = time.monotonic() + 60 * minutes, sum(part.weight for part in chosen)
    done: list[Done] = []
    for part in chosen:
        share = (deadline - time.monotonic()) * part.weight / left
        left -= part.weight
        sys.stderr.write(f"{part.name}: {share:.0f} s at most\n")
        done.append(run_part(part, out, share))
        sys.stderr.write(f"{part.name}: {done[-1].outcome}, {done[-1].says}\n")
        write_results(done, out)
    return done


def run_part(part: Part, out: Path, share: float) -> Done:
    """Runs it for `share` seconds at most; whatever it started ends with it."""
    began = time.monotonic()
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0", "HF_HUB_OFFLINE": "1"}
    with (
        (out / f"{part.name}.out").open("wb") as output,
        (out / f"{part.name}.err").open("wb") as errors,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", *part.command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = process.wait(max(share, 0.1))
            outcome = "passed" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing is left of it
            process.wait()
    return Done(
        part.name, outcome, time.monotonic() - began, _last_words(part, out), _read(part, out)
    )


def _last_words(part: Part, out: Path) -> str:
    """The last line that it said: on standard output, unless that is a document."""
    order = ("err", "out") if part.document else ("out", "err")
    for kind in order:
        lines = (out / f"{part.name}.{kind}").read_text(errors="replace").splitlines()
        if lines := [line.strip() for line in lines if line.strip()]:
            return lines[-1][:300]
    return "it said nothing"


def _read(part: Part, out: Path) -> Any:
    file = None if part.document is None else out / part.document
    if file is None or not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None  # it ended before it was done


def write_results(done: Sequence[Done], out: Path) -> None:
    """gpu.json and gpu.md of what has been done so far."""
    (out / "gpu.json").write_text(
        json.dumps({"parts": [asdict(each) for each in done]}, indent=1) + "\n", encoding="utf-8"
    )
    (out / "gpu.md").write_text("\n".join(_page(done)) + "\n", encoding="utf-8")


def _page(done: Sequence[Done]) -> Iterator[str]:
    """What ran, what each part proved, what was measured."""
    yield from ("# The engine on a GPU", "")
    for seen in [part.document["environment"] for part in done if part.document][:1]:
        yield from (", ".join(f"{key} {value}" for key, value in seen.items()) + ".", "")
    yield from ("| part | outcome | seconds | |", "|---|---|---|---|")
    for part in done:
        yield f"| {part.name} | {part.outcome} | {part.seconds:.0f} | {_said(part)} |"
    for part in done:
        if part.document and "scenarios" in part.document:
            yield from ("", markdown(part.document, part.name).replace("# ", "## ", 1))


def _said(part: Done) -> str:
    if part.document and "verdict" in part.document:
        runs, culprits = len(part.document["cases"]), len(part.document["culprits"])
        return f"{part.document['verdict']}: {runs} runs, {culprits} culprits"
    return part.says.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """0 where every part passed, 1 where one did not."""
    parser = argparse.ArgumentParser(prog="conformance.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder for the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="1b", choices=sorted(SHAPES))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--goldens", default="", help="names of goldens, or one of each family")
    parser.add_argument("--forms", default=FORMS, help="what is timed")
    parser.add_argument("--parts", default="", help="names of parts, or all")
    parser.add_argument("--write", type=Path, help="write the random model alone, into this folder")
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args(arguments)
    if given.write is not None:
        from conformance.bench.random_llama import write_model

        write_model(given.shape, given.write, given.dtype, given.device)
        return 0
    if given.out is None:
        parser.error("--out is missing")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    goldens = _names(given.goldens)
    every = parts(out, given.device, given.shape, goldens, given.forms, given.rounds)
    wanted = _names(given.parts)
    if unknown := set(wanted) - {part.name for part in every}:
        parser.error(
            f"no part {min(unknown)!r}; there are {', '.join(part.name for part in every)}"
        )
    done = run_parts([p for p in every if not wanted or p.name in wanted], out, given.minutes)
    return 0 if all(each.outcome == "passed" for each in done) else 1


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
