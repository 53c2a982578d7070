"""Faults of the choice of a token: temperature, the cuts and their order, greedy ties, seeds, the draw."""

from __future__ import annotations

from conformance.mutants.mutant import decision

_SAMPLE, _PROCESSORS = "generate/sample.py", "generate/processors.py"

_TEMPERATURE = """\
    logits = (logits - logits.max()) / params.temperature
"""
_TOP_K = """\
    if params.top_k is not None:
        logits = top_k(logits, params.top_k)
"""
_TOP_P = """\
    if params.top_p is not None and params.top_p < 1:
        logits = top_p(logits, params.top_p)
"""
_MIN_P = """\
    if params.min_p is not None:
        logits = min_p(logits, params.min_p)
"""

_HOLTZMAN = "Holtzman et al. 2020, section 3.1"
_NGUYEN = "Nguyen et al. 2024, section 3"
_ORDER = "transformers: the order of generate's logits processors"
_FIRST_OF_TIES = "torch-spyre/sendnn-inference#542"
OPENAI = "the OpenAI API reference: completions"

SAMPLING = (
    decision(
        "temperature-multiplies",
        "multiplies by the temperature",
        "transformers: TemperatureLogitsWarper",
        _PROCESSORS,
        "(logits - logits.max()) / params.temperature",
        "(logits - logits.max()) * params.temperature",
        "sampling.temperature",
    ),
    decision(
        "temperature-ignored",
        "samples at temperature 1, whatever is asked",
        "transformers: TemperatureLogitsWarper",
        _PROCESSORS,
        "(logits - logits.max()) / params.temperature",
        "logits - logits.max()",
        "sampling.temperature",
    ),
    decision(
        "temperature-last",
        "divides by the temperature after the cuts",
        _ORDER,
        _PROCESSORS,
        _TEMPERATURE + _TOP_K + _TOP_P + _MIN_P + "    if params.typical_p",
        _TOP_K + _TOP_P + _MIN_P + _TEMPERATURE + "    if params.typical_p",
        "sampling.order",
    ),
    decision(
        "top-p-before-top-k",
        "takes the nucleus of all tokens, then the k best of it",
        _ORDER,
        _PROCESSORS,
        _TOP_K + _TOP_P,
        _TOP_P + _TOP_K,
        "sampling.order",
    ),
    decision(
        "min-p-before-top-p",
        "takes the nucleus of what min_p has left",
        _ORDER,
        _PROCESSORS,
        _TOP_P + _MIN_P,
        _MIN_P + _TOP_P,
        "sampling.order",
    ),
    decision(
        "top-k-cuts-ties",
        "keeps exactly k tokens where several equal the k-th",
        _FIRST_OF_TIES,
        _PROCESSORS,
        "    return logits.masked_fill(logits < kth, -torch.inf)\n",
        "    best = logits.topk(min(k, len(logits))).indices\n"
        "    return torch.full_like(logits, -torch.inf).scatter(-1, best, logits[best])\n",
        "sampling.top_k",
    ),
    decision(
        "top-k-drops-ties",
        "drops all that equal the k-th",
        _FIRST_OF_TIES,
        _PROCESSORS,
        "logits < kth",
        "logits <= kth",
        "sampling.top_k",
    ),
    decision(
        "top-k-one-more",
        "keeps k + 1 tokens",
        "transformers: TopKLogitsWarper",
        _PROCESSORS,
        "logits.topk(min(k, len(logits)))",
        "logits.topk(min(k + 1, len(logits)))",
        "sampling.top_k",
    ),
    decision(
        "top-k-beyond-vocabulary",
        "fails where top_k is larger than the vocabulary",
        _FIRST_OF_TIES,
        _PROCESSORS,
        "logits.topk(min(k, len(logits)))",
        "logits.topk(k)",
        "sampling.top_k",
    ),
    decision(
        "top-p-one-less",
        "leaves out the token that reaches the mass",
        _HOLTZMAN,
        _PROCESSORS,
        "cut = shares.cumsum(-1) - shares >= p",
        "cut = shares.cumsum(-1) >= p",
        "sampling.top_p",
    ),
    decision(
        "top-p-one-more",
        "keeps the token after the one that reaches the mass",
        _HOLTZMAN,
        _PROCESSORS,
        "cut = shares.cumsum(-1) - shares >= p",
        "cut = torch.nn.functional.pad((shares.cumsum(-1) - shares)[:-1], (1, 0)) >= p",
        "sampling.top_p",
    ),
    decision(
        "top-p-boundary",
        "goes on where the mass is reached exactly",
        _HOLTZMAN,
        _PROCESSORS,
        "cut = shares.cumsum(-1) - shares >= p",
        "cut = shares.cumsum(-1) - shares > p",
        "sampling.top_p",
    ),
    decision(
        "top-p-least-likely",
        "adds up the least likely tokens first",
        _HOLTZMAN,
        _PROCESSORS,
        "sort(descending=True, stable=True)",
        "sort(descending=False, stable=True)",
        "sampling.top_p",
    ),
    decision(
        "top-p-not-put-back",
        "cuts by rank where it should cut by token",
        _HOLTZMAN,
        _PROCESSORS,
        "cut.scatter(-1, order, cut)",
        "cut",
        "sampling.top_p",
    ),
    decision(
        "top-p-as-min-p",
        "cuts tokens whose own share is below 1 - p",
        _HOLTZMAN,
        _PROCESSORS,
        "cut = shares.cumsum(-1) - shares >= p",
        "cut = shares < min(1 - p, float(shares[0]))",
        "sampling.top_p",
    ),
    decision(
        "min-p-of-sum",
        "measures min_p against all tokens together, not the most likely one",
        _NGUYEN,
        _PROCESSORS,
        "(logits - logits.max()).exp() < p",
        "logits.softmax(-1) < p",
        "sampling.min_p",
    ),
    decision(
        "min-p-boundary",
        "cuts what is exactly min_p times as likely as the best, and the best at 1",
        _NGUYEN,
        _PROCESSORS,
        "(logits - logits.max()).exp() < p",
        "(logits - logits.max()).exp() <= p",
        "sampling.min_p",
    ),
    decision(
        "min-p-of-logits",
        "compares logits where it should compare probabilities",
        _NGUYEN,
        _PROCESSORS,
        "(logits - logits.max()).exp() < p",
        "logits < p * logits.max()",
        "sampling.min_p",
    ),
    decision(
        "min-p-ignored",
        "has min_p and never calls it",
        _NGUYEN,
        _PROCESSORS,
        "if params.min_p is not None:",
        "if False:",
        "sampling.min_p",
    ),
    decision(
        "greedy-last-of-ties",
        "takes the last of equal logits",
        _FIRST_OF_TIES,
        _SAMPLE,
        "logit, token = logits.max(dim=-1)",
        "logit, token = logits.max(), len(logits) - 1 - logits.flip(-1).argmax()",
        "sampling.greedy",
    ),
    decision(
        "greedy-draws-ties",
        "draws among equal logits at temperature 0, as a top_k of 1 does",
        _FIRST_OF_TIES,
        _SAMPLE,
        "return scores.best",
        "return int((scores.values == scores.values.max()).float().multinomial(1))",
        "sampling.greedy",
    ),
    decision(
        "seed-ignored",
        "seeds from the clock",
        OPENAI,
        _SAMPLE,
        "self.generator.manual_seed(params.seed)",
        "self.generator.seed()",
        "sampling.draw",
    ),
    decision(
        "seed-of-the-process",
        "draws from the generator that everybody shares",
        OPENAI,
        _SAMPLE,
        "1, generator=self.generator",
        "1",
        "sampling.draw",
    ),
    decision(
        "seed-again-at-every-step",
        "plants the seed again for every token",
        OPENAI,
        _SAMPLE,
        "        return int(torch.multinomial(",
        "        self.generator.manual_seed(self.params.seed or 0)\n"
        "        return int(torch.multinomial(",
        "sampling.draw",
    ),
    decision(
        "draw-uncut",
        "draws from what the cuts should have changed",
        _ORDER,
        _SAMPLE,
        "logits = narrowed(logits.double(), self.params)",
        "logits = logits.double() / self.params.temperature",
        "sampling.draw",
    ),
    decision(
        "draw-flattened",
        "draws by the root of the probabilities",
        _ORDER,
        _SAMPLE,
        "scores.values.softmax(-1)",
        "scores.values.softmax(-1).sqrt()",
        "sampling.draw",
    ),
)
