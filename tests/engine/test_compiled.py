"""Compiled steps: whole graphs in every family, of few shapes, that give what the decoder gives.

Most graphs are captured and run as they are, which takes a second; the compiler's own code is run for one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from conformance.compiled_candidate import candidates, graphs_as_they_are
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.verdict import trial
from engine import Engine, SamplingParams
from engine.cache import BLOCK_SIZE, Part, Room
from engine.compiled import ROWS
from engine.device import DTYPES
from engine.errors import LockstepError, RequestError
from engine.mask import PLAIN, Custom
from engine.probe import attached

#: A golden of each family, and one whose rope follows the length.
GOLDENS = (
    "llama-bias gpt2-inverse-layer mistral-window qwen2 qwen3 gemma-mqa gemma2 gemma3 phi3-partial "
    "olmo2 smollm3 granite mixtral qwen3-moe gpt-oss deepseek-v3 llama-rope-dynamic"
).split()
#: At night all goldens of small models, in each dtype.
CASES = {name: (name, torch.float32) for name in GOLDENS}
if settings.default.max_examples > 1000:
    WHOLE = {file.parent.name for file in REPOSITORY_GOLDENS.glob("*/trace.safetensors")}
    SMALL = sorted(n for n in WHOLE if (REPOSITORY_GOLDENS / n / "model.safetensors").exists())
    CASES |= {f"{name}-{dtype}": (name, dtype) for name in SMALL for dtype in DTYPES.values()}
ROOMS = 5  # of a cache
CHUNK = 4  # tokens of a prompt at once: with so few, rings of the window wrap around
LLAMA = REPOSITORY_GOLDENS / "llama-gqa"
GEMMA3 = REPOSITORY_GOLDENS / "gemma3"
KINDS = ("contiguous", "ring", "paged")


@pytest.fixture
def graphs() -> Iterator[list[torch.fx.GraphModule]]:
    torch.compiler.reset()
    with graphs_as_they_are() as seen:
        yield seen
    torch.compiler.reset()


def rows(graphs: Sequence[torch.fx.GraphModule]) -> list[int]:
    """Of how many sequences each graph computes a step."""
    inputs = [
        [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        for graph in graphs
    ]
    return [next(len(x) for x in given if x.dtype == torch.int64) for given in inputs]


@pytest.mark.parametrize(("name", "dtype"), list(CASES.values()), ids=list(CASES))
def test_each_family_is_one_graph_inside_the_envelope(
    name: str, dtype: torch.dtype, graphs: list[torch.fx.GraphModule]
) -> None:
    golden = Golden(REPOSITORY_GOLDENS / name)
    (candidate,) = candidates(golden.folder, "cpu", str(dtype).removeprefix("torch."))
    assert trial(candidate, golden, dtype, golden.schedule_in(None)).conforms
    assert len(graphs) == 1


# The compiler imports what torch itself calls old.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_compilers_own_code_is_inside_the_envelope() -> None:
    golden = Golden(REPOSITORY_GOLDENS / "llama-bias")
    (candidate,) = candidates(golden.folder, "cpu", "float32")
    torch.compiler.reset()
    assert trial(candidate, golden, torch.float32, golden.schedule_in(None)).conforms


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_compilers_own_code_of_many_sequences_gives_the_decoders_logits() -> None:
    """Five of them in a graph for eight: a row in each lane."""
    torch.compiler.reset()
    assert_same_steps(LLAMA, "paged", 3, range(5), 20)
    torch.compiler.reset()


#: All three layers are alike; or two are, and one has no window, another rope, or none.
KINDS_OF_LAYERS = {"llama-gqa": 1, "gemma2": 2, "gemma3": 2, "smollm3": 2}


@pytest.mark.parametrize(("name", "kinds"), list(KINDS_OF_LAYERS.items()))
def test_layers_that_are_alike_are_captured_once(
    name: str, kinds: int, graphs: list[torch.fx.GraphModule]
) -> None:
    engine = Engine.load(REPOSITORY_GOLDENS / name, compiled=True)
    assert len(engine.spec.layers) == 3
    with torch.inference_mode():
        engine.decode(5, engine.new_cache(8))
    (graph,) = graphs
    assert len(list(graph.children())) == kinds


def run(engine: Engine, kind: str, steps: int, rooms: Sequence[int], length: int) -> list[Tensor]:
    """Logits [n, V] of `steps` passes of one token of each of these of ROOMS sequences."""
    cache = engine.pages if kind == "paged" else engine.new_cache(300, ROOMS, CHUNK)
    opened: list[Room] = []
    for i in range(ROOMS):
        prompt = [(i * 7 + t) % 50 for t in range(length - 2 * i)]
        room = cache.admit(prompt, len(prompt), False)
        for first in range(0, len(prompt), CHUNK):
            some = prompt[first : first + CHUNK]
            engine.decoder(torch.tensor([some]), cache, [Part(room, len(some))], last=1)
        opened.append(room)
    parts = [Part(opened[i], 1) for i in rooms]
    return [
        engine.decoder(torch.tensor([[(t + i) % 50 for i in rooms]]), cache, parts)[0]
        for t in range(steps)
    ]


def assert_same_steps(
    model: Path,
    kind: str,
    steps: int,
    rooms: Sequence[int],
    length: int,
    custom: Custom = PLAIN,
) -> None:
    """Compiled steps differ by no more than three times what another legal order of all sums makes."""
    tokens = ROOMS * (length + steps + BLOCK_SIZE) if kind == "paged" else None
    plain, other, compiled = (
        Engine.load(model, cache=kind, cache_tokens=tokens, custom=custom, **options)
        for options in ({}, {"batch_invariant": True}, {"compiled": True})
    )
    with torch.inference_mode():
        want, legal, got = (
            torch.stack(run(engine, kind, steps, rooms, length))
            for engine in (plain, other, compiled)
        )
    assert (got - want).abs().max() <= 3 * (legal - want).abs().max()


@pytest.mark.parametrize(
    ("model", "kind"),
    [(LLAMA, "contiguous"), (GEMMA3, "ring"), (GEMMA3, "paged")],
    ids=["rows", "rings", "blocks"],
)
@pytest.mark.parametrize("rooms", [(0, 1, 2, 3), (1, 3), (0, 2, 3), (2,), (0, 1, 2, 3, 4)], ids=str)
def test_steps_are_those_of_the_decoder(
    model: Path, kind: str, rooms: tuple[int, ...], graphs: list[torch.fx.GraphModule]
) -> None:
    """Rows side by side, with gaps, fewer than the graph has; rings that wrap around; blocks."""
    assert_same_steps(model, kind, 6, rooms, 20)
    assert rows(graphs) == [next(n for n in ROWS if n >= len(rooms))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_sequence_takes_a_second_graph(
    kind: str, graphs: list[torch.fx.GraphModule]
) -> None:
    """At 257 keys; what lies behind a sequence's end is not read."""
    assert_same_steps(LLAMA, kind, 12, (0, 1), 250)
    assert rows(graphs).count(2) == 2


def test_answers_of_many_are_those_without_graphs(graphs: list[torch.fx.GraphModule]) -> None:
    """Prompts of many lengths, then two answers to each of them."""
    plain, compiled = (Engine.load(LLAMA, compiled=c) for c in (False, True))
    prompts = [[i % 50 for i in range(n, 2 * n)] for n in (3, 5, 9, 4, 8)]
    params = [
        SamplingParams(max_tokens=6, ignore_eos=True),
        SamplingParams(max_tokens=9, n=2, seed=1),
    ]
    for each in params:
        want, got = plain.generate(prompts, each), compiled.generate(prompts, each)
        assert [ids(answer) for answer in got] == [ids(answer) for answer in want]
    assert graphs and set(rows(graphs)) <= set(ROWS)


def ids(answers: Any) -> list[list[int]]:
    return [answer.token_ids for answer in (answers if isinstance(answers, list) else [answers])]


def test_what_is_watched_is_not_compiled(graphs: list[torch.fx.GraphModule]) -> None:
    """A graph has no probes; and one that was compiled before they came would not notice them."""
    engine = Engine.load(LLAMA, compiled=True)
    cache = engine.new_cache(20)
    seen: list[str] = []

    def tap(probe: str, value: Tensor) -> Tensor:
        seen.append(probe)
        return value

    with torch.inference_mode():
        engine.decode(5, cache)
        with attached(tap, ("", engine.decoder)):
            engine.decode(6, cache)
        engine.decode(7, cache)
    assert "layers.0.attn.q_rope" in seen
    assert len(graphs) == 1


def test_a_decoder_has_graphs_of_its_own(
    graphs: list[torch.fx.GraphModule], tmp_path: Path
) -> None:
    """Another one of the same sizes, whose norms are others, does not run its graph."""
    other = tmp_path / "other"
    shutil.copytree(LLAMA, other)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    config["rms_norm_eps"] = 0.5
    (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for model in (LLAMA, other):
        assert_same_steps(model, "contiguous", 2, (0,), 20)
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "custom",
    [
        Custom(mask=lambda q, k: (q - k) % 3 != 1),
        Custom(bias=lambda q, k: -0.25 * (q - k)),
    ],
    ids=["mask", "bias"],
)
def test_a_users_own_attention_is_in_graphs(
    custom: Custom, graphs: list[torch.fx.GraphModule]
) -> None:
    assert_same_steps(LLAMA, "contiguous", 6, (0, 1), 20, custom)
    assert len(graphs) == 1


def test_shapes_are_few(graphs: list[torch.fx.GraphModule]) -> None:
    """A cache is made in a size that graphs have, so that the next answer finds its graph."""
    engine = Engine.load(LLAMA, compiled=True)
    for length in (3, 8, 21):
        engine.generate(list(range(length)), SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(graphs) == 1


@pytest.mark.parametrize(("most", "step_tokens", "made"), [(3, 512, [1, 2, 4]), (32, 2, [1, 2])])
def test_what_was_warmed_up_is_not_compiled_again(
    most: int, step_tokens: int, made: list[int], graphs: list[torch.fx.GraphModule]
) -> None:
    """In another thread, and by as many as run at once; it leaves nothing behind in the cache."""
    engine = Engine.load(LLAMA, cache="paged", cache_tokens=128, compiled=True)
    engine.max_batch, engine.step_tokens = most, step_tokens
    told: list[int] = []
    warming = Thread(target=lambda: engine.warm(told.append))
    warming.start()
    warming.join()
    assert told == rows(graphs) == made
    assert engine.pages.pool.available == engine.pages.pool.n
    assert engine.pages.hits == engine.pages.misses == engine.counters.steps == 0
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    plain = Engine.load(LLAMA)
    for n in (1, 2, 3):
        prompts = [[5 + i, 9] for i in range(n)]
        assert ids(engine.generate(prompts, params)) == ids(plain.generate(prompts, params))
    assert len(graphs) == len(made)


def test_no_more_are_warmed_up_than_the_cache_has_room_for(
    graphs: list[torch.fx.GraphModule],
) -> None:
    engine = Engine.load(LLAMA, cache="paged", cache_tokens=3 * BLOCK_SIZE, compiled=True)
    engine.warm()
    assert rows(graphs) == [1, 2, 4]


def test_there_is_nothing_to_warm_up_without_graphs_and_nothing_that_stays_without_pages() -> None:
    engine = Engine.load(LLAMA, cache="paged")
    engine.warm()
    assert engine.counters.steps == 0
    with pytest.raises(RequestError, match="paged"):
        Engine.load(LLAMA, compiled=True).warm()


def test_the_batch_invariant_mode_is_refused() -> None:
    with pytest.raises(RequestError, match="batch-invariant mode has kernels of its own"):
        Engine.load(LLAMA, compiled=True, batch_invariant=True)


def test_a_machine_without_a_compiler_is_told_so() -> None:
    none = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with none, pytest.raises(RequestError, match=r"needs a C\+\+ compiler: install g\+\+ or clang"):
        Engine.load(LLAMA, compiled=True)


def test_what_cannot_be_captured_is_one_clear_error() -> None:
    """A user's own mask that looks at numbers on its way; without graphs it may."""

    def looks(q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos > q_pos - 4 if bool((q_pos > -2).all()) else k_pos > q_pos

    engine = Engine.load(LLAMA, compiled=True, custom=Custom(mask=looks))
    with pytest.raises(LockstepError, match=r"a step cannot be compiled: .*without compiled"):
        engine.generate([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    cache = engine.new_cache(8)
    with torch.inference_mode(), pytest.raises(LockstepError):
        engine.decode(5, cache)
    assert cache.length == 0  # the token was not taken


def test_compiling_that_is_switched_off_is_refused() -> None:
    off = torch._dynamo.config.patch(disable=True)
    with off, pytest.raises(RequestError, match="unset TORCH_COMPILE_DISABLE"):
        Engine.load(LLAMA, compiled=True)


def test_where_memory_is_short_a_cache_is_made_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the slots that graphs of few shapes would like; and none is longer than the context."""
    engine = Engine.load(LLAMA, compiled=True)
    assert engine.new_cache(9, 3).tokens == 4 * engine.spec.context
    monkeypatch.setattr("engine.cache.cache.free_bytes", lambda device: 40_000)
    assert engine.new_cache(9, 3).tokens == 3 * 9
