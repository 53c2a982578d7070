"""A whole run: workers started, asked in turns, and what they said put together."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.bench import compare
from conformance.bench.forms import REFERENCE, Form, forms
from conformance.bench.growth import Asking, grow
from conformance.bench.result import Bench, environment, model_of
from conformance.bench.rounds import differing, play, ratios
from conformance.bench.scenarios import SPOKEN, USUAL, Sizes, prompt_ids, scenarios
from conformance.bench.work import Work, work
from conformance.bench.worker import Asked, Worker
from conformance.process import Say, run_module
from engine.device import check_device, check_dtype
from engine.errors import RequestError
from engine.models import resolve
from engine.tokenizer.formats.open import tokenizer_file
from engine.weights import open_checkpoint

RIVALS = {"transformers": ("transformers", "transformers-compiled")}


@dataclass(frozen=True)
class Wanted:
    """What is asked of a run; `forms` by name, or None for eager and compiled."""

    model: str
    against: str | None = None
    forms: Sequence[str] | None = None
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    rounds: int = 5
    sizes: Sizes = USUAL
    stages: bool = False
    growth: bool = False
    compare: Path | None = None


def run_bench(wanted: Wanted, say: Say) -> Bench:
    """Plays every scenario in every form; RequestError, before anything is timed, for what cannot be."""
    chosen = _chosen(wanted)
    old = None if wanted.compare is None else compare.read(wanted.compare)
    source = resolve(wanted.model, progress=True)
    checkpoint = open_checkpoint(source)
    with unpacked(source, chosen, wanted.dtype, say) as model, ExitStack() as stack:
        works = {form.name: work(model, form.dtype) for form in chosen}
        described = model_of(checkpoint, wanted.model, works[chosen[0].name])
        if old is not None:
            compare.check_comparable(old, described["shape"], wanted.dtype)
        context, ids = checkpoint.spec.context, prompt_ids(model, checkpoint.spec.vocab_size)
        spoken = tokenizer_file(model) is not None
        if wanted.stages and not spoken:
            raise RequestError(f"{source} has no tokenizer, and stages are those of a text")
        played_here, skipped = scenarios(ids, context, spoken, wanted.sizes)
        workers, machine = _started(stack, model, chosen, wanted, say)
        played = play(workers, machine, chosen, played_here, wanted.rounds, say)
        works |= _weighed(chosen, works, played.starts)
        bench = Bench(
            environment(wanted.device, wanted.threads),
            described,
            wanted.dtype,
            chosen,
            wanted.rounds,
            played,
            works,
            ratios(played, chosen, works),
            differing(played, chosen),
            skipped,
        )
        if wanted.stages:
            say("stages")
            plain = [form.name for form in chosen if not form.is_compiled]
            bench.stages = {name: workers[name].ask("stages", text=SPOKEN) for name in plain}
        if wanted.growth:
            growing = [form for form in chosen if "growth" not in form.unasked]
            asking = Asking(workers, machine, growing, ids, say)
            bench.growth = grow(asking, works, wanted.sizes, context, min(wanted.rounds, 3))
    if old is not None:
        bench.falls = compare.fallen(old, bench.to_json())
    return bench


def _chosen(wanted: Wanted) -> list[Form]:
    """The forms, with everything checked that can be before a model is opened."""
    check_dtype(wanted.dtype)
    check_device(wanted.device)
    for name, number in (("rounds", wanted.rounds), ("threads", wanted.threads)):
        if number is not None and number < 1:
            raise RequestError(f"{name} must be at least 1, got {number}")
    if wanted.against is not None and wanted.against not in RIVALS:
        raise RequestError(f"nothing to time {wanted.against!r} by; there is transformers")
    rivals = RIVALS[wanted.against] if wanted.against else ()
    ours = wanted.forms if wanted.forms is not None else ("eager", "compiled")
    chosen = forms(list(dict.fromkeys([*rivals, *ours])), wanted.dtype)
    if any(form.module == REFERENCE for form in chosen):
        require_reference()
    return chosen


def require_reference() -> None:
    """Raises RequestError where transformers is not installed."""
    if not _installed("transformers"):
        raise RequestError("transformers is not installed: install the extra lockstep-llm[oracle]")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextmanager
def unpacked(source: Path, chosen: Sequence[Form], dtype: str, say: Say) -> Iterator[Path]:
    """The model's path; of a .gguf file that transformers shall read a folder, as it takes long over one."""
    if source.suffix != ".gguf" or all(form.module != REFERENCE for form in chosen):
        yield source
        return
    say("writing the model as safetensors")
    with TemporaryDirectory(prefix="lockstep-bench-") as folder:
        run_module(
            "conformance.oracle",
            ["unpack", str(source), folder, dtype],
            failed="transformers could not read the model",
            prefix="",
            say=say,
        )
        yield Path(folder)


def _started(
    stack: ExitStack, model: Path, chosen: Sequence[Form], wanted: Wanted, say: Say
) -> tuple[Mapping[str, Asked], Asked]:
    """A worker for each form, and the one that measures the machine."""
    threads = {} if wanted.threads is None else {"OMP_NUM_THREADS": str(wanted.threads)}
    machine = {
        "device": wanted.device,
        "threads": wanted.threads,
        "dtypes": sorted({form.dtype for form in chosen}),
        "reading": wanted.sizes.reading,
        "products": wanted.sizes.products,
    }
    measuring = Worker("limits", ("conformance.bench.limits",), machine, say, threads)
    workers = {
        form.name: stack.enter_context(
            Worker(
                form.name,
                form.module,
                form.settings(str(model), wanted.device, wanted.threads),
                say,
                threads,
            )
        )
        for form in chosen
    }
    return workers, stack.enter_context(measuring)


def _weighed(
    chosen: Sequence[Form], works: Mapping[str, Work], starts: Mapping[str, Mapping[str, int]]
) -> dict[str, Work]:
    """The work of quantized forms, whose weights have the bytes that their workers count."""
    return {
        form.name: replace(works[form.name], weights=starts[form.name]["weights"])
        for form in chosen
        if form.options.get("quantization")
    }
