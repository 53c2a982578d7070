"""Faults of biases and penalties, and of what a choice is told of the tokens so far and says of itself."""

from __future__ import annotations

from conformance.mutants.mutant import decision
from conformance.mutants.sampling import OPENAI

_PROCESSORS = "generate/processors.py"
_REQUEST = "generate/request.py"
_BIAS = """\
    if params.logit_bias:
        logits = logit_bias(logits, params.logit_bias)
"""
_REPETITION = """\
    if params.repetition_penalty != 1:
        logits = repetition_penalty(logits, history.tokens, params.repetition_penalty)
"""
_COUNTS = """\
    if params.presence_penalty or params.frequency_penalty:
        logits = count_penalties(
            logits, history.answer, params.presence_penalty, params.frequency_penalty
        )
"""
_ORDER = "transformers: the order of generate's logits processors"
_PENALTIES = "huggingface/transformers#36642"
_KESKAR = "Keskar et al. 2019, section 4.1"

PENALTIES = (
    decision(
        "bias-multiplies",
        "multiplies a logit by its bias",
        OPENAI,
        _PROCESSORS,
        "return logits.index_add(0, torch.tensor(list(bias)), values)",
        "at = torch.tensor(list(bias))\n    return logits.index_copy(0, at, logits[at] * values)",
        "sampling.logit_bias",
    ),
    decision(
        "bias-replaces",
        "takes the bias for the logit",
        OPENAI,
        _PROCESSORS,
        "return logits.index_add(0, torch.tensor(list(bias)), values)",
        "return logits.index_copy(0, torch.tensor(list(bias)), values)",
        "sampling.logit_bias",
    ),
    decision(
        "bias-first-only",
        "biases one token alone",
        OPENAI,
        _PROCESSORS,
        "return logits.index_add(0, torch.tensor(list(bias)), values)",
        "return logits.index_add(0, torch.tensor(list(bias)[:1]), values[:1])",
        "sampling.logit_bias",
    ),
    decision(
        "bias-last",
        "adds biases after the penalties",
        _ORDER,
        _PROCESSORS,
        _BIAS + _REPETITION,
        _REPETITION + _BIAS,
        "sampling.together",
    ),
    decision(
        "repetition-of-the-answer",
        "penalises what the answer repeats, and not what it takes from the prompt",
        _PENALTIES,
        _PROCESSORS,
        "repetition_penalty(logits, history.tokens, params",
        "repetition_penalty(logits, history.answer, params",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-of-the-prompt",
        "penalises the prompt's tokens alone",
        _PENALTIES,
        _PROCESSORS,
        "repetition_penalty(logits, history.tokens, params",
        "repetition_penalty(logits, history.prompt, params",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-divides-always",
        "divides negative logits too, which makes their tokens more likely",
        _PENALTIES,
        _PROCESSORS,
        "torch.where(those < 0, those * penalty, those / penalty)",
        "those / penalty",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-other-sign",
        "multiplies positive logits and divides negative ones",
        _PENALTIES,
        _PROCESSORS,
        "torch.where(those < 0,",
        "torch.where(those > 0,",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-each-time",
        "penalises a token for each time that it came",
        _PENALTIES,
        _PROCESSORS,
        "    seen = torch.tensor(sorted(set(tokens)), dtype=torch.int64)\n    those = logits[seen]\n",
        "    seen = torch.tensor(sorted(set(tokens)), dtype=torch.int64)\n    those = logits[seen]\n"
        "    penalty = penalty ** torch.tensor([list(tokens).count(t) for t in seen.tolist()])\n",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-subtracts",
        "takes the penalty away from the logit",
        _KESKAR,
        _PROCESSORS,
        "torch.where(those < 0, those * penalty, those / penalty)",
        "those - penalty",
        "sampling.repetition_penalty",
    ),
    decision(
        "repetition-in-logprobs",
        "penalises log-probabilities, all of which are negative",
        _KESKAR,
        _PROCESSORS,
        "    those = logits[seen]\n",
        "    logits = logits.log_softmax(-1)\n    those = logits[seen]\n",
        "sampling.repetition_penalty",
    ),
    decision(
        "counts-of-all-tokens",
        "counts the prompt's tokens too",
        "NVIDIA/TensorRT-LLM#5623",
        _PROCESSORS,
        "            logits, history.answer, params.presence_penalty",
        "            logits, history.tokens, params.presence_penalty",
        "sampling.presence_penalty sampling.frequency_penalty",
    ),
    decision(
        "presence-as-frequency",
        "takes the presence penalty for each time that a token came",
        "osaurus-ai/vmlx-swift#295",
        _PROCESSORS,
        "presence + frequency * count",
        "(presence + frequency) * count",
        "sampling.presence_penalty",
    ),
    decision(
        "frequency-as-presence",
        "takes the frequency penalty once",
        "osaurus-ai/vmlx-swift#295",
        _PROCESSORS,
        "presence + frequency * count",
        "presence + frequency",
        "sampling.frequency_penalty",
    ),
    decision(
        "counts-reward",
        "adds what should be taken away",
        OPENAI,
        _PROCESSORS,
        "logits.index_add(0, seen, -torch.tensor(taken",
        "logits.index_add(0, seen, torch.tensor(taken",
        "sampling.presence_penalty sampling.frequency_penalty",
    ),
    decision(
        "frequency-as-share",
        "counts a token as its share of the answer",
        OPENAI,
        _PROCESSORS,
        "frequency * count for",
        "frequency * count / len(answer) for",
        "sampling.frequency_penalty",
    ),
    decision(
        "frequency-by-sign",
        "multiplies negative logits, as a repetition penalty does",
        _PENALTIES,
        _PROCESSORS,
        "return logits.index_add(0, seen, -torch.tensor(taken, dtype=logits.dtype))",
        "those = logits[seen]\n"
        "    rate = 1 + torch.tensor(taken, dtype=logits.dtype)\n"
        "    return logits.index_copy(0, seen, torch.where(those < 0, those * rate, those / rate))",
        "sampling.presence_penalty sampling.frequency_penalty",
    ),
    decision(
        "presence-alone-ignored",
        "has no penalty where the frequency penalty is 0",
        OPENAI,
        _PROCESSORS,
        "if params.presence_penalty or params.frequency_penalty:",
        "if params.frequency_penalty:",
        "sampling.presence_penalty",
    ),
    decision(
        "counts-before-repetition",
        "takes presence and frequency before the repetition penalty",
        _ORDER,
        _PROCESSORS,
        _REPETITION + _COUNTS,
        _COUNTS + _REPETITION,
        "sampling.together",
    ),
    decision(
        "history-without-prompt",
        "shows the processors the answer alone",
        _PENALTIES,
        _REQUEST,
        "return History(self.prompt, self.tokens[len(self.prompt) :], self.ends, self.limit)",
        "return History((), self.tokens[len(self.prompt) :], self.ends, self.limit)",
        "sampling.history",
    ),
    decision(
        "history-all-answer",
        "takes the prompt for the beginning of the answer",
        _PENALTIES,
        _REQUEST,
        "return History(self.prompt, self.tokens[len(self.prompt) :], self.ends, self.limit)",
        "return History((), self.tokens, self.ends, self.limit)",
        "sampling.history",
    ),
    decision(
        "history-one-token-late",
        "does not show the processors the last token",
        _PENALTIES,
        _REQUEST,
        "self.tokens[len(self.prompt) :], self.ends",
        "self.tokens[len(self.prompt) : -1], self.ends",
        "sampling.history",
    ),
    decision(
        "logprobs-modes-swapped",
        "gives the processed distribution for the raw one, and the raw for the processed",
        "vllm-project/vllm#47815",
        _REQUEST,
        'if params.logprobs_mode == "raw" else scores',
        'if params.logprobs_mode == "processed" else scores',
        "logprobs",
    ),
    decision(
        "logprobs-always-raw",
        "knows no processed log-probabilities",
        "vllm-project/vllm#47815",
        _REQUEST,
        'asked = logits if params.logprobs_mode == "raw" else scores',
        "asked = logits",
        "logprobs",
    ),
    decision(
        "logprobs-always-processed",
        "gives log-probabilities of penalised and filtered logits, whatever is asked",
        "vllm-project/vllm#47815",
        _REQUEST,
        'asked = logits if params.logprobs_mode == "raw" else scores',
        "asked = scores",
        "logprobs",
    ),
)
