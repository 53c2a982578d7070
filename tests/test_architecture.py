"""The laws of the architecture, read from the syntax of every file, and each law shown to bite."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.families import read_spec

ROOT = Path(__file__).parents[1]
REFERENCE = {"transformers", "tokenizers", "accelerate", "sentencepiece", "tiktoken"}
OTHER_ENGINES = {"vllm"}
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORWARD_PASS = r"engine/(decoder|layers|moe|attention|rope|probe)\.py|engine/(backends|cache)/.*"
MODEL_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|gpt|phi_?\d|olmo|smol|granite|deepseek", re.IGNORECASE
)
MAX_LINES = 420
MAX_GOLDEN_BYTES = 40 * 2**20

# -- reading a file ------------------------------------------------------------------------------


def imports(tree: ast.AST, path: str) -> Iterator[str]:
    """Every module named in an import, at any depth, relative ones resolved, and in a dynamic one."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                whole = ".".join([*base, *([module] if module else [])])
                yield whole or "."
                yield from (f"{whole}.{alias.name}".lstrip(".") for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(func).split(".")[-1] in ("import_module", "__import__"):
                    yield name


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def docstrings(tree: ast.AST) -> set[ast.AST]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


# -- the laws ------------------------------------------------------------------------------------


def engine_stands_alone(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    banned = REFERENCE | OTHER_ENGINES | {"conformance"}
    yield from (f"imports {m}" for m in imports(tree, path) if top(m) in banned)
    for node in ast.walk(tree):  # a name that waits for a dynamic import
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in banned:
            yield f"line {node.lineno} names {node.value}"


def reference_has_its_room(path: str, source: str) -> Iterator[str]:
    yield from (f"imports {m}" for m in imports(ast.parse(source), path) if top(m) in REFERENCE)


def oracle_never_meets_the_engine(path: str, source: str) -> Iterator[str]:
    for module in imports(ast.parse(source), path):
        if top(module) == "engine" and not module.startswith("engine.errors"):
            yield f"imports {module}"


def tokenizer_has_no_torch(path: str, source: str) -> Iterator[str]:
    yield from (f"imports {m}" for m in imports(ast.parse(source), path) if top(m) == "torch")


def families_are_data(path: str, source: str) -> Iterator[str]:
    allowed = ("engine.spec", "engine.errors", "engine.families")
    for module in imports(ast.parse(source), path):
        if top(module) not in sys.stdlib_module_names and not module.startswith(allowed):
            yield f"imports {module}"


def forward_pass_names_no_model(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    prose = docstrings(tree)
    # What engine.spec exports is a type, and choosing by type is how it should be done; the
    # function that serves Llama3Scaling may be called _llama3.
    types = {
        alias.name.lower()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "engine.spec"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                pass
            case ast.Constant(value=str(name)) if node not in prose:
                pass
            case _:
                continue
        own = name.strip("_").lower()
        if MODEL_NAMES.search(name) and not any(t.startswith(own) for t in types):
            yield f"names {name}"


def forward_pass_counts_no_layers(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    counters: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            over = ast.unparse(node.iter)
            if re.match(r"enumerate\(.*(layers|blocks)|range\(.*(layers|blocks)", over):
                first = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
                counters.add(ast.unparse(first))
    named = re.compile(r"(^|[._])((layer|block)_?(idx|index|id|i|no|number)|(i|idx)_layer)$")
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.Compare):
            parts = [node.left, *(node.comparators if isinstance(node, ast.Compare) else [])]
            parts += [node.right] if isinstance(node, ast.BinOp) else []
            for text in map(ast.unparse, parts):
                if text in counters or named.search(text):
                    yield f"line {node.lineno} computes with {text}"


def engine_runs_no_foreign_code(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    yield from (f"imports {m}" for m in imports(tree, path) if top(m) in UNSAFE_MODULES)
    yield from (f"imports {m}" for m in imports(tree, path) if m == "torch.load")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" as name)):
                yield f"line {node.lineno} calls {name}"
            case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                yield f"line {node.lineno} uses torch.load"
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                yield "allows pickles"


def files_are_small(path: str, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_LINES:
        yield f"has {lines} lines, more than {MAX_LINES}"


@dataclass(frozen=True)
class Law:
    """`check` yields violations of files whose path matches `where`; `bites` are such violations."""

    check: Callable[[str, str], Iterator[str]]
    where: str
    bites: tuple[tuple[str, str], ...]
    spares: tuple[tuple[str, str], ...] = ()


LAWS = (
    Law(
        engine_stands_alone,
        r"engine/.*",
        bites=(
            ("engine/a.py", "import conformance.golden"),
            ("engine/a.py", "def f():\n    from transformers import AutoModel"),
            ("engine/a.py", "from tokenizers.models import BPE"),
            ("engine/a.py", "import importlib\nimportlib.import_module('tiktoken')"),
            ("engine/a.py", "HOMES = {'AutoModel': 'transformers'}"),
            ("engine/a.py", "try:\n    import vllm\nexcept ImportError:\n    pass"),
            ("engine/a.py", "from accelerate import init_empty_weights"),
            ("engine/a.py", "from .. import conformance"),
        ),
        spares=(("engine/a.py", '"""As transformers does."""\nfrom engine.tokenizer import x'),),
    ),
    Law(
        reference_has_its_room,
        r"(conformance|tests)/(?!oracle/).*",
        bites=(
            ("conformance/a.py", "import transformers"),
            ("tests/test_a.py", "def test():\n    from tokenizers import Tokenizer"),
            ("conformance/a.py", "__import__('transformers.models')"),
        ),
        spares=(("conformance/a.py", "from conformance.oracle import tokenizers_library"),),
    ),
    Law(
        oracle_never_meets_the_engine,
        r"conformance/oracle/.*",
        bites=(
            ("conformance/oracle/a.py", "from engine import Engine"),
            ("conformance/oracle/a.py", "def f():\n    from engine.decoder import Decoder"),
            ("conformance/oracle/a.py", "import engine\nengine.Engine"),
            ("conformance/oracle/a.py", "import engine.generate"),
            ("conformance/oracle/a.py", "from engine.gguf import open_gguf"),
        ),
        spares=(("conformance/oracle/a.py", "from engine.errors import LockstepError"),),
    ),
    Law(
        tokenizer_has_no_torch,
        r"engine/(tokenizer/.*|models\.py|gguf\.py|files\.py|errors\.py)",
        bites=(
            ("engine/tokenizer/a.py", "import torch"),
            ("engine/tokenizer/a.py", "def f():\n    from torch import tensor"),
        ),
        # The commands that need torch import it when they run; see the subprocess test below.
        spares=(("engine/tokenizer/a.py", "import regex"),),
    ),
    Law(
        families_are_data,
        r"engine/families/.*",
        bites=(
            ("engine/families/a.py", "from engine.decoder import Block"),
            ("engine/families/a.py", "import torch"),
            ("engine/families/a.py", "from ..layers import MLP"),
        ),
        spares=(
            ("engine/families/a.py", "from typing import Any\nfrom engine.spec import RMSNorm"),
            ("engine/families/a.py", "from . import llama\nfrom ..spec import Rope"),
        ),
    ),
    Law(
        forward_pass_names_no_model,
        FORWARD_PASS,
        bites=(
            ("engine/decoder.py", "if config.model_type == 'gemma2':\n    pass"),
            ("engine/decoder.py", "def llama_block(): ..."),
            ("engine/layers.py", "x = self.is_qwen3"),
            ("engine/layers.py", "class GemmaNorm: ..."),
        ),
        spares=(
            ("engine/rope.py", '"""Llama 3.1\'s rule."""\n# as Gemma does\nx = 1'),
            (
                "engine/rope.py",
                "from engine.spec import Llama3Scaling\ndef _llama3(s: Llama3Scaling): ...",
            ),
        ),
    ),
    Law(
        forward_pass_counts_no_layers,
        FORWARD_PASS,
        bites=(
            ("engine/decoder.py", "window = layer_idx % 2"),
            ("engine/decoder.py", "if self.layer_index == 0: pass"),
            ("engine/decoder.py", "for i, layer in enumerate(self.layers):\n    f(i // 6)"),
            ("engine/decoder.py", "[Block(i > 3) for i in range(spec.n_layers)]"),
        ),
        spares=(("engine/decoder.py", "for layer in self.layers:\n    x = layer(x) + 1"),),
    ),
    Law(
        engine_runs_no_foreign_code,
        r"engine/.*",
        bites=(
            ("engine/a.py", "import pickle"),
            ("engine/a.py", "torch.load(path)"),
            ("engine/a.py", "torch.load(path, weights_only=True)"),
            ("engine/a.py", "from torch import load"),
            ("engine/a.py", "eval('1')"),
            ("engine/a.py", "def f():\n    exec(code)"),
            ("engine/a.py", "np.load(path, allow_pickle=True)"),
        ),
        spares=(("engine/a.py", "model.eval()\nre.compile('a')\nnp.load(p, allow_pickle=False)"),),
    ),
    Law(
        files_are_small,
        r"(engine|conformance)/.*",
        bites=(("engine/a.py", "x = 1\n" * (MAX_LINES + 1)),),
        spares=(("engine/a.py", "x = 1\n" * MAX_LINES),),
    ),
)
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("engine", "conformance", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


def name(law: Law) -> str:
    return law.check.__name__


@pytest.mark.parametrize("law", LAWS, ids=name)
def test_law_holds(law: Law) -> None:
    """Every file in the law's reach keeps it, and there is at least one such file."""
    reached = [path for path in FILES if re.fullmatch(law.where, path)]
    assert reached
    broken = [
        f"{path}: {fault}"
        for path in reached
        for fault in law.check(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("law", "path", "snippet"),
    [pytest.param(law, *bite, id=name(law)) for law in LAWS for bite in law.bites],
)
def test_law_bites(law: Law, path: str, snippet: str) -> None:
    """A law that finds nothing in a violating file would pass for ever without guarding anything."""
    assert re.fullmatch(law.where, path)
    assert list(law.check(path, snippet))


@pytest.mark.parametrize(
    ("law", "path", "snippet"),
    [pytest.param(law, *spare, id=name(law)) for law in LAWS for spare in law.spares],
)
def test_law_spares_what_is_allowed(law: Law, path: str, snippet: str) -> None:
    assert re.fullmatch(law.where, path)
    assert not list(law.check(path, snippet))


# -- what syntax cannot show ---------------------------------------------------------------------


def loaded_after(*statements: str) -> set[str]:
    """The top-level modules in a fresh interpreter after it ran the statements."""
    code = "\n".join([*statements, "import sys", "print(*{m.split('.')[0] for m in sys.modules})"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_tokenizer_and_command_line_load_no_torch() -> None:
    """A transitive import would make `lockstep tokenize` wait for torch."""
    light = "import engine, engine.tokenizer, engine.models, engine.cli, conformance.cli"
    assert "torch" not in loaded_after(light)
    assert "torch" in loaded_after("import torch")


def test_engine_loads_no_reference_whatever_is_imported() -> None:
    modules = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in FILES
        if path.startswith("engine/") and not path.endswith("__main__.py")
    ]
    assert len(modules) > 20
    loaded = loaded_after(*(f"import {module}" for module in modules))
    assert not loaded & (REFERENCE | OTHER_ENGINES | {"conformance"})


def test_an_unread_config_key_is_an_error() -> None:
    """A `sliding_window` that nobody reads is how engines ship wrong mathematics."""
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    read_spec(config)
    with pytest.raises(ModelFileError, match="sliding_window"):
        read_spec({**config, "sliding_window": 4096})


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_goldens_stay_small(tmp_path: Path) -> None:
    """They are committed: a clone pays for them."""
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "trace.safetensors").write_bytes(bytes(1000))
    assert size(tmp_path) == 1000
    assert size(ROOT / "golden") < MAX_GOLDEN_BYTES


def test_ci_runs_the_tests_as_tox_does() -> None:
    """By the same command, though in the environment of the demonstration."""
    tests = next(
        line.removeprefix("commands = ").removesuffix(" {posargs}")
        for line in (ROOT / "tox.ini").read_text(encoding="utf-8").splitlines()
        if line.startswith("commands = pytest")
    )
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert tests in [line.strip() for line in lines]
