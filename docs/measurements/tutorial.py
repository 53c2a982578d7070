"""Every number and picture of docs/tutorial.md: the path of one prompt, and six faults planted one by one.

    python docs/measurements/tutorial.py              measure everything (minutes), write facts, pictures and the text
    python docs/measurements/tutorial.py path rope    measure these again, and keep what is known of the others
    python docs/measurements/tutorial.py --text       write the text again from facts that were measured
    python docs/measurements/tutorial.py --facts rope one run as JSON, in this process: the path, or a fault's name

What is measured goes to docs/tutorial/facts.json, and the text is docs/tutorial/template.md filled with it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "measurements")]

from tutorial_pictures import bars, lens_picture, maps, merges_picture

from conformance.mutants.mutant import Mutant, fault
from conformance.mutants.planting import plant

FOLDER = ROOT / "docs" / "tutorial"
PROMPT = "The capital of France is"
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
LONG = f"The secret word is Lighthouse. {FILLER * 22}{PROMPT} Paris. The secret word is"
LOOKED_AT = (16, 0)  # a layer and a head whose map is drawn


@dataclass(frozen=True)
class Experiment:
    """A fault, the model and prompt that are inspected with it, and the golden that is checked."""

    fault: Mutant
    golden: tuple[str, ...]
    model: str = "smollm2-135m"
    dtype: str = "float32"
    prompt: str = PROMPT


def _fault(name: str, file: str, old: str, new: str) -> Mutant:
    return fault(name, name, "the tutorial", file, old, new, "")


EXPERIMENTS = {
    "rope": Experiment(
        _fault(
            "rope",
            "rope.py",
            "first, second = turned.chunk(2, dim=-1)",
            "first, second = turned[..., 0::2], turned[..., 1::2]",
        ),
        ("golden/llama-gqa",),
    ),
    "scale": Experiment(
        _fault("scale", "backends/eager.py", ".view(B, H, T, S) * attn.scale", ".view(B, H, T, S)"),
        ("golden/llama-gqa", "--backend", "eager"),
    ),
    "bos": Experiment(
        _fault("bos", "tokenizer/post.py", "elif add_special_tokens:", "elif False:"),
        ("golden/text-llama2",),
        model="gemma3-270m",
    ),
    "window": Experiment(
        _fault("window", "mask.py", "(k_pos > q_pos - window)", "(k_pos > q_pos - window // 2)"),
        ("golden/mistral-window", "--backend", "eager"),
        model="gemma3-270m",
        prompt=LONG,
    ),
    "heads": Experiment(
        _fault(
            "heads",
            "backends/eager.py",
            "q.reshape(B, K, H // K * T, D)",
            "q.unflatten(1, (H // K, K)).transpose(1, 2).reshape(B, K, H // K * T, D)",
        ),
        ("golden/llama-gqa", "--backend", "eager"),
    ),
    "fp16": Experiment(
        _fault("fp16", "layers.py", "wide = x.float()", "wide = x"),
        ("golden/llama-gqa", "--dtype", "float16", "--backend", "eager"),
        dtype="float16",
    ),
}


# -- what one process finds ------------------------------------------------------------------------


def looked_at(model: str, dtype: str, prompt: str) -> dict[str, Any]:
    """An inspection in a few numbers: the answer, its candidates, what heads do on average, one map."""
    from engine import Engine, SamplingParams
    from engine.inspect import inspected

    engine = Engine.load(model, dtype=dtype)
    found = inspected(engine, prompt, SamplingParams(max_tokens=6))
    choice, spelled = found["choices"][0], found["spellings"]
    heads = [head for layer in found["attention"]["layers"] for head in layer["heads"]]
    shown = found["attention"]["layers"][LOOKED_AT[0]]["heads"][LOOKED_AT[1]]
    return {
        "tokens": len(found["prompt"]["tokens"]),
        "ids": [token["id"] for token in found["prompt"]["tokens"]],
        "spelled": [spelled[token["id"]]["text"] for token in found["prompt"]["tokens"]],
        "answer": "".join(row["out"] for row in found["answer"]),
        "first": spelled[choice["chosen"]]["text"],
        "candidates": [
            (spelled[token]["text"], share)
            for token, share in zip(choice["ids"][:5], choice["stages"][0]["shares"], strict=False)
        ],
        "entropy": choice["stages"][0]["entropy"],
        "vocabulary": found["model"]["vocab"],
        **{
            f"mean_{name}": sum(head[name] for head in heads) / len(heads)
            for name in ("entropy", "first", "self", "previous", "distance")
        },
        "map": shown["largest"][: len(found["prompt"]["tokens"])],
        "document": found,
    }


def largest(ids: list[int]) -> dict[str, Any]:
    """The largest activation of the stream at the first token and at the last, and behind which layer."""
    from engine import Engine

    engine = Engine.load("smollm2-135m")
    trace = engine.trace(ids)
    streams = [trace[f"layers.{n}.out"][0].float().abs() for n in range(engine.spec.n_layers)]
    found = {}
    for name, at in (("first", 0), ("last", -1)):
        sizes = [float(stream[at].max()) for stream in streams]
        found[name] = {"size": max(sizes), "layer": sizes.index(max(sizes))}
    return found


def the_path(seen: dict[str, Any]) -> dict[str, Any]:
    """More of the path without a fault, for the first half of the tutorial."""
    found = seen.pop("document")
    words = found["prompt"]["words"]
    capital = words[1]["pieces"][0]
    spelled = {i: each["spelled"] for i, each in found["spellings"].items()}
    passes = found["operations"]["passes"]["prompt"]
    layer = passes["kinds"][passes["layers"][1]]
    calls = [row for row in layer if row["kind"] != "probe"]
    cache, parameters = found["cache"], found["model"]["parameters"]
    texts = {i: each["text"] for i, each in found["spellings"].items()}
    return seen | {
        "rule": words[1]["rule"]["alternative"],
        "which": words[1]["rule"]["which"] + 1,
        "of": words[1]["rule"]["of"],
        "symbols": [spelled[i] for i in capital["symbols"]],
        "merges": [(rank, spelled[made]) for _, rank, made in capital["merges"]],
        "all_merges": sum(len(w["pieces"][0]["merges"]) for w in words),
        "parameters": {name: part["numbers"] for name, part in parameters.items()},
        "calls": len(calls),
        "views": sum(row["kind"] == "view" for row in calls),
        "shapes": [(row["path"], row["shape"]) for row in layer if row["kind"] == "probe"],
        "per_token": cache["per_token"],
        "work": cache["work"],
        "multi_head": cache["growth"]["variants"][1]["now"] / cache["growth"]["variants"][0]["now"],
        "lens": [
            (texts[each["ids"][0]], each["shares"][0], each["rank"])
            for each in found["choices"][0]["lens"]
        ],
        "streamed": [texts[row["id"]] for row in found["answer"]],
    }


def checked(arguments: Sequence[str]) -> dict[str, Any]:
    """`lockstep check` in this process: its status, and what it says of the first culprit, without lines' numbers."""
    from conformance.cli import app
    from engine.command import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = run(app, "lockstep", ["check", *arguments])
    lines = out.getvalue().splitlines()
    culprits = [
        re.sub(r"(\.py):\d+", r"\1", line).rstrip() for line in lines if line.startswith("culprit")
    ]
    return {
        "command": " ".join(["lockstep", "check", *arguments]),
        "status": status,
        "culprits": culprits[:3],
        "more": max(0, len(culprits) - 3),
        "last": lines[-1],
    }


def facts_of(name: str) -> dict[str, Any]:
    """The path, or an experiment with its fault planted before the engine is imported."""
    if name == "path":
        found = the_path(looked_at("smollm2-135m", "float32", PROMPT))
        return found | {"largest": largest(found["ids"])}
    experiment = EXPERIMENTS[name]
    plant([experiment.fault])
    seen = looked_at(experiment.model, experiment.dtype, experiment.prompt)
    del seen["document"]
    return {"seen": seen, "check": checked(experiment.golden)}


def intact(experiment: Experiment) -> dict[str, Any]:
    seen = looked_at(experiment.model, experiment.dtype, experiment.prompt)
    del seen["document"]
    return seen


# -- all of it -------------------------------------------------------------------------------------


def measured(facts: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Each run in a process of its own, as a fault is planted before anything is imported."""
    for name in names:
        print(name, file=sys.stderr)
        if name == "path":
            facts["path"] = _asked(name)
        else:
            facts["experiments"][name] = _asked(name)
            facts["intact"][name] = intact(EXPERIMENTS[name])
    return facts


def _asked(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--facts", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def draw(facts: Mapping[str, Any]) -> None:
    path = facts["path"]
    pictures = {
        "merges": merges_picture(path),
        "lens": lens_picture(path),
        "candidates": bars(
            {"after “The capital of France is”": path["candidates"]}, "The likeliest next tokens"
        ),
        "head": maps({"layer 16, head 0": path["map"]}, path["spelled"], "What one head looks at"),
    }
    for name, found in facts["experiments"].items():
        before, after = facts["intact"][name], found["seen"]
        pictures[f"{name}-candidates"] = bars(
            {"as it is": before["candidates"], "with the fault": after["candidates"]},
            f"{name}: candidates",
        )
        if name in ("rope", "scale", "heads"):
            both = {"as it is": before["map"], "with the fault": after["map"]}
            pictures[f"{name}-head"] = maps(both, before["spelled"], f"{name}: layer 16, head 0")
    for name, svg in pictures.items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


def filled(facts: Mapping[str, Any]) -> str:
    """The tutorial's text, with every number from the facts."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701 - Markdown
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": lambda share, digits=1: f"{share * 100:.{digits}f} %",
        "count": lambda n: f"{n:,}",
        "kib": lambda n: f"{n / 1024:g} KiB",
        "million": lambda n: f"{n / 1e6:.1f} million",
        "shown": lambda said: json.dumps(said, ensure_ascii=False),
        "shape": lambda sizes: " × ".join(map(str, sizes)),
    }
    template = environment.from_string((FOLDER / "template.md").read_text(encoding="utf-8"))
    faults = {name: experiment.fault for name, experiment in EXPERIMENTS.items()}
    return template.render(**facts, faults=faults, prompt=PROMPT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", default=["path", *EXPERIMENTS])
    parser.add_argument("--facts", metavar="NAME")
    parser.add_argument("--text", action="store_true")
    asked = parser.parse_args()
    if asked.facts:
        print(json.dumps(facts_of(asked.facts)))
        return
    file = FOLDER / "facts.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not asked.text:
        found = measured({"experiments": {}, "intact": {}} | known, asked.names)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    facts = json.loads(file.read_text(encoding="utf-8"))
    draw(facts)
    (ROOT / "docs" / "tutorial.md").write_text(filled(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
