"""The oracle as a process, so that it shares none with an engine.

    case NAME OUT [MODEL]          makes a committed golden
    live NAME MODEL OUT DTYPE      makes a golden of any model for one check
    alarms COUNT SEED OUT FOLDER...   judges COUNT legal variants of the reference
    answers MODEL IDS N OUT        float32 logits of IDS (eager, sdpa, and eager in
                                   chunks of 7) and N greedy tokens after them
    settings                       answers what becomes of logits, a line for a line of standard input
    timing                         is timed: questions of `lockstep bench` on standard input
    unpack GGUF OUT DTYPE          writes a .gguf file's model as a folder of safetensors

Progress goes to standard error in lines that begin with `progress: `, an error in one with `error: `.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
import transformers
from safetensors.torch import save_file

from conformance import decision_cases
from conformance.bench.worker import serve
from conformance.cases import CASES, REAL_CASES, Case, RealCase
from conformance.cases.answers import ANSWERS_CASES, AnswersCase
from conformance.cases.beams import BEAMS_CASES, BeamsCase
from conformance.oracle import answers
from conformance.oracle.alarms import write_tallies
from conformance.oracle.beams import capture_beams
from conformance.oracle.capture import capture_case, capture_live, capture_real
from conformance.oracle.decisions import capture_decisions
from conformance.oracle.model import load
from conformance.oracle.settings import answers as answers_of_settings
from conformance.oracle.text import capture_text_case, capture_tokens
from conformance.oracle.timing import questions, unpack
from conformance.text_cases import TEXT_CASES, TextCase
from conformance.tokens import TOKENS_CASES, TokensCase
from engine.errors import LockstepError


def say(message: str) -> None:
    print(f"progress: {message}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["case", name, out, *model]:
            make(name, Path(out), model)
        case ["live", name, model_path, out, dtype]:
            capture_live(name, Path(model_path), Path(out), dtype, say)
        case ["alarms", count, seed, out, *folders]:
            write_tallies(int(count), int(seed), Path(out), [Path(f) for f in folders], say)
        case ["answers", model_path, ids, n, out]:
            answer(Path(model_path), [int(token) for token in ids.split(",")], int(n), Path(out))
        case ["settings"]:
            for line in answers_of_settings(sys.stdin):
                print(line, flush=True)
        case ["timing"]:
            serve(questions)
        case ["unpack", gguf, out, dtype]:
            unpack(Path(gguf), Path(out), dtype)
        case _:
            raise LockstepError((__doc__ or "").strip())


def make(name: str, out: Path, model: list[str]) -> None:
    """Makes the golden of the case of that name; `model` holds the path that a real case needs."""
    if name == decision_cases.NAME:
        capture_decisions(out)
        return
    cases: tuple[Case | RealCase | TextCase | TokensCase | AnswersCase | BeamsCase, ...]
    cases = (*CASES, *REAL_CASES, *TEXT_CASES, *TOKENS_CASES, *ANSWERS_CASES, *BEAMS_CASES)
    for case in cases:
        if case.name == name:
            match case:
                case Case():
                    capture_case(case, out, say)
                case RealCase():
                    capture_real(case, Path(model[0]), out, say)
                case TextCase():
                    capture_text_case(case, out)
                case TokensCase():
                    capture_tokens(case, Path(model[0]), out)
                case AnswersCase():
                    answers.capture_answers(case, Path(model[0]), out, say)
                case BeamsCase():
                    capture_beams(case, Path(model[0]) if model else None, out, say)
            return
    raise LockstepError(f"no case {name!r}")


CHUNK = 7


def answer(path: Path, ids: list[int], n: int, out: Path) -> None:
    model = load(path, torch.float32)
    found = {kind: answers.logits(model, ids, kind) for kind in ("eager", "sdpa")}
    found["chunks"] = answers.logits_in_chunks(model, ids, CHUNK)
    if n:
        found["greedy"] = torch.tensor(answers.greedy(model, ids, n), dtype=torch.int64)
    save_file(found, out)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        main(sys.argv[1:])
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
