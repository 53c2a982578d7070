"""Faults of stopping: ends, stop texts, finish reasons, counts and log-probabilities."""

from __future__ import annotations

from conformance.mutants.mutant import decision
from conformance.mutants.sampling import OPENAI

_LOADED, _ENGINE, _ANSWER = (
    "generate/loaded.py",
    "generate/engine.py",
    "generate/answer.py",
)
_REQUEST, _PROMPTS, _LOGPROB = (
    "generate/request.py",
    "generate/prompts.py",
    "generate/logprobs.py",
)

_ENDS = """\
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self.eos_ids
"""
_STEP = "entries = self._entries(logits, scores.values, token)"
_LATE_STEP = (
    'entries = self._entries(getattr(self, "old", logits), scores.values, token); self.old = logits'
)

_ALL_ENDS = "vllm-project/vllm#4182"
_REASONS = "lmstudio-ai/lmstudio-bug-tracker#2335"
_STOP_STRINGS = "vllm-project/vllm#3574"
_OWN_LOGPROBS = "facebookresearch/metaseq#87"

_ENDINGS = (
    decision(
        "eos-first-only",
        "takes the first of a list of end tokens",
        _ALL_ENDS,
        _PROMPTS,
        "else value if isinstance(value, list)",
        "else value[:1] if isinstance(value, list)",
        "stopping.eos",
    ),
    decision(
        "eos-last-only",
        "takes the last of a list of end tokens",
        _ALL_ENDS,
        _PROMPTS,
        "else value if isinstance(value, list)",
        "else value[-1:] if isinstance(value, list)",
        "stopping.eos",
    ),
    decision(
        "eos-not-of-generation-config",
        "does not read the generation config",
        _ALL_ENDS,
        _LOADED,
        "end_ids(checkpoint.generation_config or {},",
        "end_ids({},",
        "stopping.eos",
    ),
    decision(
        "eos-config-as-fallback",
        "reads config.json only where the generation config names no end token",
        _ALL_ENDS,
        _LOADED,
        "ids |= end_ids(config,",
        "ids = ids or end_ids(config,",
        "stopping.eos",
    ),
    decision(
        "eos-not-of-tokenizer",
        "does not ask the tokenizer for its end token",
        "Blaizzy/mlx-vlm#2112",
        _LOADED,
        "return ids | frozenset(self.tokenizer.eos_ids if self.has_tokenizer else ())",
        "return ids",
        "stopping.eos",
    ),
    decision(
        "eos-not-ignored",
        "ends at the model's end token although that is to be ignored",
        _ALL_ENDS,
        _ENGINE,
        "if not params.ignore_eos:",
        "if True:",
        "stopping.eos",
    ),
    decision(
        "end-token-shown",
        "shows the text of the token that ended the answer",
        _ALL_ENDS,
        _REQUEST,
        'text = "" if ended else answer.push(token)',
        "text = answer.push(token)",
        "stopping.eos stopping.stop_ids",
    ),
    decision(
        "stop-id-shown",
        "hides the model's own end tokens alone",
        "oobabooga/textgen#5885",
        _REQUEST,
        'text = "" if ended else answer.push(token)',
        'text = "" if ended and token not in self.params.stop_token_ids else answer.push(token)',
        "stopping.stop_ids",
    ),
    decision(
        "stop-id-first-only",
        "takes the first of the request's stop ids",
        _ALL_ENDS,
        _ENGINE,
        "frozenset(params.stop_token_ids)",
        "frozenset(params.stop_token_ids[:1])",
        "stopping.stop_ids",
    ),
    decision(
        "stop-ids-replace-eos",
        "forgets the model's end tokens where the request names some",
        "oobabooga/textgen#5885",
        _ENGINE,
        "            ends |= self.eos_ids\n",
        "            ends = ends or self.eos_ids\n",
        "stopping.stop_ids",
    ),
    decision(
        "stop-ids-ignored-with-eos",
        "ignores the request's stop ids too where the end token is to be ignored",
        "oobabooga/textgen#5885",
        _ENGINE,
        _ENDS,
        "        ends = frozenset(params.stop_token_ids) | self.eos_ids\n"
        "        ends = frozenset() if params.ignore_eos else ends\n",
        "stopping.stop_ids",
    ),
    decision(
        "stop-string-shown",
        "cuts nothing off before a stop string",
        _STOP_STRINGS,
        _ANSWER,
        "-= 1\n        return self._matcher.push(text, self._armed)",
        "-= 1\n        self._matcher.push(text, self._armed)\n        return text",
        "stopping.stop_text",
    ),
    decision(
        "stop-string-not-ending",
        "hides what follows a stop string, and goes on computing it",
        "SharpAI/SwiftLM#126",
        _REQUEST,
        "final = ended or complete or answer.stopped or n == self.limit",
        "final = ended or complete or n == self.limit",
        "stopping.stop_text",
    ),
    decision(
        "held-text-lost",
        "loses the text that was held back as the beginning of a stop string",
        "vllm-project/vllm#3672",
        _ANSWER,
        "self._matcher.push(text, self._armed) + self._matcher.flush()",
        "self._matcher.push(text, self._armed)",
        "stopping.stop_text",
    ),
    decision(
        "special-tokens-shown",
        "shows the markers of turns in the answer",
        "openvinotoolkit/model_server#4168",
        _ENGINE,
        "self.tokenizer.stream(skip_special_tokens=True, after=prompt)",
        "self.tokenizer.stream(skip_special_tokens=False, after=prompt)",
        "stopping.text",
    ),
    decision(
        "max-tokens-one-more",
        "generates one token more than allowed",
        _REASONS,
        _ENGINE,
        "min(params.max_tokens, self.spec.context - len(ids))",
        "min(params.max_tokens + 1, self.spec.context - len(ids))",
        "stopping.max_tokens",
    ),
    decision(
        "max-tokens-with-prompt",
        "counts the prompt among the tokens that an answer may have",
        _REASONS,
        _ENGINE,
        "min(params.max_tokens, self.spec.context - len(ids))",
        "max(1, min(params.max_tokens, self.spec.context) - len(ids))",
        "stopping.max_tokens",
    ),
    decision(
        "context-overrun",
        "goes on past the model's context",
        _REASONS,
        _ENGINE,
        "min(params.max_tokens, self.spec.context - len(ids))",
        "params.max_tokens",
        "stopping.max_tokens",
    ),
    decision(
        "reason-of-the-last-token",
        "says length where the end token is the last one allowed",
        _REASONS,
        _REQUEST,
        'reason = "stop" if ended or complete or answer.stopped else "length"',
        'reason = "length" if len(self.pieces) == self.limit - 1 else "stop"',
        "stopping.reason",
    ),
    decision(
        "reason-of-stop-strings",
        "says length after a stop string",
        "ggml-org/llama.cpp#7198",
        _REQUEST,
        'reason = "stop" if ended or complete or answer.stopped else "length"',
        'reason = "stop" if ended else "length"',
        "stopping.reason",
    ),
    decision(
        "reason-in-every-piece",
        "gives a reason before the last piece",
        OPENAI,
        "generate/service.py",
        "        return said\n",
        "        reason = said.finish_reason or 'length'\n"
        "        return Piece(said.text, said.token_ids, reason, said.logprobs)\n",
        "stopping.reason",
    ),
    decision(
        "usage-without-end-token",
        "does not count the last token",
        _REASONS,
        _REQUEST,
        '"completion_tokens": n_completed,',
        '"completion_tokens": n_completed - 1,',
        "stopping.usage",
    ),
    decision(
        "usage-total-without-prompt",
        "leaves the prompt out of the total",
        "pegainfer-project/pegainfer#238",
        _REQUEST,
        '"total_tokens": n_prompt + n_completed,',
        '"total_tokens": n_completed,',
        "stopping.usage",
    ),
)

_LOGPROBS = (
    decision(
        "logprob-one-step-late",
        "looks a token up in the logits of the step before",
        _OWN_LOGPROBS,
        _REQUEST,
        _STEP,
        _LATE_STEP,
        "logprobs",
    ),
    decision(
        "logprob-of-the-neighbour",
        "gives the log-probability of the id before",
        _OWN_LOGPROBS,
        _LOGPROB,
        "float(logprobs[token])",
        "float(logprobs[token - 1])",
        "logprobs",
    ),
    decision(
        "logprob-of-the-best",
        "gives the best token's log-probability for the one that was drawn",
        "theroyallab/tabbyAPI#141",
        _LOGPROB,
        "float(logprobs[token])",
        "float(logprobs.max())",
        "logprobs",
    ),
    decision(
        "logprobs-after-temperature",
        "gives log-probabilities of the distribution that was drawn from",
        "vllm-project/vllm#47815",
        _REQUEST,
        'asked = logits if params.logprobs_mode == "raw" else scores',
        "asked = logits / (params.temperature or 1)",
        "logprobs",
    ),
    decision(
        "logprobs-not-normalised",
        "gives logits for log-probabilities",
        "togethercomputer/openapi#5",
        _LOGPROB,
        "logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))",
        "logits.float()",
        "logprobs",
    ),
    decision(
        "logprobs-in-half",
        "normalises in float16",
        _OWN_LOGPROBS,
        _LOGPROB,
        "logits.log_softmax(-1,",
        "logits.half().log_softmax(-1,",
        "logprobs",
    ),
    decision(
        "logprobs-one-more",
        "gives one token more than asked for",
        OPENAI,
        _LOGPROB,
        "top(logprobs, min(n, len(logprobs)))",
        "top(logprobs, min(n + 1, len(logprobs)))",
        "logprobs",
    ),
    decision(
        "logprobs-worst-first",
        "gives the best tokens with the least likely first",
        OPENAI,
        _LOGPROB,
        "sort(descending=True, stable=True)",
        "sort(stable=True)",
        "logprobs",
    ),
)

STOPPING = (*_ENDINGS, *_LOGPROBS)
