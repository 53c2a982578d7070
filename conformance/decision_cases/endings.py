"""The model whose answer is ended in many ways, and what is asked of its log-probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import Case
from conformance.decision_cases.sampling import NAME, Settings

#: The model whose greedy answer is ended in many ways. Its context leaves room for TOKENS tokens.
PROMPT = "The unhappy others gathered there"
TOKENS = 16
MODEL = Case(
    NAME,
    "llama",
    {
        "vocab_size": 0,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-2,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    seed=79,
)


@dataclass(frozen=True)
class Ending:
    """One way to end the model's answer. End tokens are named by their place in the answer.

    `config`, `generation_config` and `tokenizer` say what those files name as end tokens, None that
    they name none; ABSENT is a token that the answer lacks. `bites` is False where nothing may end
    before `max_tokens`, `across_prompt` where the stop string begins in the prompt.
    """

    stage: str
    max_tokens: int = TOKENS
    min_tokens: int = 0
    config: int | tuple[int, ...] | None = None
    generation_config: int | tuple[int, ...] | None = None
    tokenizer: str | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    bites: bool = True
    across_prompt: bool = False


ABSENT = -1

#: The answer is: ashes, return, ed, _g, gh, __, _g, ~, _100, ch, <|im_end|>, athered, ____, _g, }, !!!
ENDINGS: tuple[Ending, ...] = (
    Ending("text", bites=False),
    Ending("max_tokens", max_tokens=1, bites=False),
    Ending("max_tokens", max_tokens=2, bites=False),
    Ending("max_tokens", max_tokens=7, bites=False),
    Ending("max_tokens", max_tokens=100, bites=False),  # the context ends first
    Ending("max_tokens", generation_config=4, max_tokens=4, bites=False),
    Ending("eos", generation_config=4),
    Ending("eos", generation_config=0),
    Ending("eos", generation_config=(4, 7)),
    Ending("eos", generation_config=(7, 4)),
    Ending("eos", generation_config=(ABSENT, 2)),
    Ending("eos", config=4),
    Ending("eos", config=(ABSENT, 1)),
    Ending("eos", config=5, generation_config=9),
    Ending("eos", config=9, generation_config=5),
    Ending("eos", generation_config=ABSENT, tokenizer="<|im_end|>"),
    Ending("eos", tokenizer="<|im_end|>"),
    Ending("eos", generation_config=4, max_tokens=5),  # the end token is the last one allowed
    Ending("eos", config=4, generation_config=2, ignore_eos=True, bites=False),
    Ending("stop_ids", stop_token_ids=(4,)),
    Ending("stop_ids", stop_token_ids=(ABSENT, 2)),
    Ending("stop_ids", stop_token_ids=(7, 1)),
    Ending("stop_ids", generation_config=9, stop_token_ids=(2,)),
    Ending("stop_ids", generation_config=2, stop_token_ids=(9,)),
    Ending("stop_ids", generation_config=2, stop_token_ids=(5,), ignore_eos=True),
    Ending("stop_ids", stop_token_ids=(4,), max_tokens=5),
    Ending("stop_text", stop=("tu",)),  # within a token, whose rest is not shown either
    Ending("stop_text", stop=("rne",)),  # from the middle of a token to the middle of the next
    Ending("stop_text", stop=("esreturned g",)),
    Ending("stop_text", stop=("gh",)),  # after one g that is followed by another
    Ending("stop_text", stop=("~", " g~", "!!!")),  # two end together: the one that starts first
    Ending("stop_text", stop=("zzz", "ret")),
    Ending("stop_text", stop=("ned",), max_tokens=3),
    Ending("stop_text", stop=("ghost",), max_tokens=5, bites=False),  # gh is held back, and shown
    Ending("stop_text", stop=("ghost",), generation_config=5),
    Ending("stop_text", stop=("reashes",), bites=False, across_prompt=True),
    Ending("min_tokens", min_tokens=4, generation_config=4),  # the fifth is free again
    Ending("min_tokens", min_tokens=5, generation_config=4, bites=False),
    Ending("min_tokens", min_tokens=5, generation_config=(4, 7)),
    Ending("min_tokens", min_tokens=8, config=4, generation_config=7, bites=False),
    Ending("min_tokens", min_tokens=3, stop_token_ids=(2, 9)),
    Ending("min_tokens", min_tokens=7, max_tokens=7, generation_config=(2, 4), bites=False),
    Ending("min_tokens", min_tokens=5, generation_config=4, ignore_eos=True, bites=False),
    Ending("min_tokens", min_tokens=4, stop=("gh",)),  # the fifth token completes it
    Ending("min_tokens", min_tokens=5, stop=("gh",), bites=False),
    Ending("min_tokens", min_tokens=5, stop=("ghost", "gh  ")),  # begun before, completed after
    Ending("min_tokens", min_tokens=4, stop=(" g",)),  # the first is passed over, not the second
    Ending("min_tokens", min_tokens=2, max_tokens=3, stop=("ret", "ned")),
)

#: What is asked of the log-probabilities; with a temperature, tokens are drawn.
LOGPROBS: tuple[Settings, ...] = (
    {"max_tokens": 8, "logprobs": 0},
    {"max_tokens": TOKENS, "logprobs": 6},
    {"max_tokens": 8, "logprobs": 3, "temperature": 2.0, "top_k": 20, "seed": 5},
    {"max_tokens": 8, "logprobs": 4, "repetition_penalty": 1.5, "logit_bias": {99: 1.0}},
    {"max_tokens": 8, "logprobs": 6, "logprobs_mode": "processed", "repetition_penalty": 1.5},
    {
        "max_tokens": 8,
        "logprobs": 3,
        "logprobs_mode": "processed",
        "temperature": 2.0,
        "top_k": 20,
        "min_p": 0.02,
        "seed": 5,
    },
)


@dataclass(frozen=True)
class Followed:
    """Settings that look at the tokens so far, all along a greedy answer to the prompt.

    `prompt` is how many of its tokens are given; `bites` is False where the answer is the plain one.
    """

    settings: Settings
    prompt: int | None = None
    bites: bool = True


FOLLOWED: tuple[Followed, ...] = (
    Followed({"max_tokens": TOKENS, "repetition_penalty": 1.5}),
    Followed({"max_tokens": TOKENS, "presence_penalty": 1.0}),
    Followed({"max_tokens": TOKENS, "frequency_penalty": 1.0}),
    Followed({"max_tokens": TOKENS, "no_repeat_ngram_size": 1}),
    Followed({"max_tokens": TOKENS, "bad_words_ids": [[188, 111], [212], [219, 244]]}),
    Followed({"max_tokens": TOKENS, "bad_words_ids": [[111], [219]], "stop_token_ids": [219]}),
    Followed({"max_tokens": 7, "forced_eos_token_id": 188}),
    Followed({"max_tokens": 100, "forced_eos_token_id": 188}),  # at the end of the context
    Followed({"max_tokens": 3, "forced_bos_token_id": 188}, prompt=1),
    Followed({"max_tokens": 3, "forced_bos_token_id": 188}, prompt=2, bites=False),
)


def write_model(golden: Path, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """The golden's model in a folder of its own, with these keys in these of its files."""
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(golden / name, folder / name)
    config = json.loads((golden / "config.json").read_text(encoding="utf-8"))
    for name, keys in {"config.json": {}, **files}.items():
        whole = config | keys if name == "config.json" else keys
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")
