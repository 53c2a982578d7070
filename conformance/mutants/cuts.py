"""Faults of the typical, epsilon and eta cuts, and of their place."""

from __future__ import annotations

from conformance.mutants.mutant import decision

_PROCESSORS = "generate/processors.py"
_TYPICAL = """\
    if params.typical_p is not None and params.typical_p < 1:
        logits = typical_p(logits, params.typical_p)
"""
_EPSILON = """\
    if params.epsilon_cutoff:
        logits = epsilon_cutoff(logits, params.epsilon_cutoff)
"""
_ORDER = "transformers: the order of generate's logits processors"
_MEISTER = "Meister et al. 2023, section 3"
_HEWITT = "Hewitt et al. 2022, section 4"

CUTS = (
    decision(
        "typical-signed",
        "takes tokens that are more likely than expected for the nearest",
        _MEISTER,
        _PROCESSORS,
        "(surprise - _entropy(logits)).abs()",
        "surprise - _entropy(logits)",
        "sampling.typical_p",
    ),
    decision(
        "typical-entropy-in-bits",
        "compares surprise in nats with an entropy in bits",
        _MEISTER,
        _PROCESSORS,
        "(surprise - _entropy(logits)).abs()",
        "(surprise - _entropy(logits) / torch.log(torch.tensor(2.0))).abs()",
        "sampling.typical_p",
    ),
    decision(
        "typical-of-probabilities",
        "measures the distance of probabilities, not of surprise",
        _MEISTER,
        _PROCESSORS,
        "(surprise - _entropy(logits)).abs()",
        "((-surprise).exp() - (-_entropy(logits)).exp()).abs()",
        "sampling.typical_p",
    ),
    decision(
        "typical-one-less",
        "leaves out the token that reaches the mass",
        _MEISTER,
        _PROCESSORS,
        "distance > nearest[before.clamp(max=len(logits) - 1)]",
        "distance > nearest[(before - 1).clamp(min=0)]",
        "sampling.typical_p",
    ),
    decision(
        "typical-cuts-ties",
        "drops what is as near as the last token that is kept",
        _MEISTER,
        _PROCESSORS,
        "    return logits.masked_fill(distance > nearest[before.clamp(max=len(logits) - 1)],",
        "    far = torch.ones_like(logits, dtype=torch.bool)\n"
        "    far[order[: int(before) + 1]] = False\n"
        "    return logits.masked_fill(far,",
        "sampling.typical_p",
    ),
    decision(
        "typical-most-likely-first",
        "adds up the most likely tokens first, which makes it a nucleus",
        _MEISTER,
        _PROCESSORS,
        "distance = (surprise - _entropy(logits)).abs()",
        "distance = surprise",
        "sampling.typical_p",
    ),
    decision(
        "epsilon-of-the-best",
        "measures epsilon against the most likely token",
        _HEWITT,
        _PROCESSORS,
        "below = logits.softmax(-1) < epsilon",
        "below = (logits - logits.max()).exp() < epsilon",
        "sampling.epsilon_cutoff",
    ),
    decision(
        "epsilon-keeps-none",
        "cuts the best too where no token reaches epsilon",
        _HEWITT,
        _PROCESSORS,
        "logits.masked_fill(below & (logits < logits.max()), -torch.inf)",
        "logits.masked_fill(below, -torch.inf)",
        "sampling.epsilon_cutoff",
    ),
    decision(
        "epsilon-keeps-all",
        "cuts nothing where no token reaches epsilon",
        _HEWITT,
        _PROCESSORS,
        "logits.masked_fill(below & (logits < logits.max()), -torch.inf)",
        "logits if below.all() else logits.masked_fill(below, -torch.inf)",
        "sampling.epsilon_cutoff",
    ),
    decision(
        "eta-without-root",
        "takes epsilon itself for its root",
        _HEWITT,
        _PROCESSORS,
        "epsilon**0.5",
        "epsilon",
        "sampling.eta_cutoff",
    ),
    decision(
        "eta-of-the-larger",
        "takes the larger of the two thresholds",
        _HEWITT,
        _PROCESSORS,
        ".clamp(max=epsilon)",
        ".clamp(min=epsilon)",
        "sampling.eta_cutoff",
    ),
    decision(
        "eta-grows-with-entropy",
        "raises the threshold where the choice is wide open",
        _HEWITT,
        _PROCESSORS,
        "(_entropy(logits).neg().exp() * epsilon**0.5)",
        "(_entropy(logits).exp() * epsilon**0.5)",
        "sampling.eta_cutoff",
    ),
    decision(
        "eta-by-entropy-itself",
        "multiplies by the entropy, not by its exponential",
        _HEWITT,
        _PROCESSORS,
        "(_entropy(logits).neg().exp() * epsilon**0.5)",
        "(_entropy(logits) * epsilon**0.5)",
        "sampling.eta_cutoff",
    ),
    decision(
        "eta-as-epsilon",
        "cuts at epsilon, however wide open the choice is",
        _HEWITT,
        _PROCESSORS,
        "epsilon_cutoff(logits, float(eta))",
        "epsilon_cutoff(logits, epsilon)",
        "sampling.eta_cutoff",
    ),
    decision(
        "typical-after-epsilon",
        "takes the typical tokens of what epsilon has left",
        _ORDER,
        _PROCESSORS,
        _TYPICAL + _EPSILON,
        _EPSILON + _TYPICAL,
        "sampling.order",
    ),
    decision(
        "cuts-without-a-draw",
        "narrows the choice at temperature 0 too",
        _ORDER,
        _PROCESSORS,
        "return logits if params.temperature == 0 else narrowed(logits, params)",
        "return narrowed(logits, params) if params.temperature else top_k(logits, params.top_k or len(logits))",
        "sampling.together",
    ),
    decision(
        "penalties-after-cuts",
        "penalises what the cuts have left",
        _ORDER,
        _PROCESSORS,
        "    logits = penalised(logits, params, history)\n"
        "    return logits if params.temperature == 0 else narrowed(logits, params)",
        "    if params.temperature:\n        logits = narrowed(logits.cpu().double(), params)\n"
        "    return penalised(logits, params, history)",
        "sampling.together",
    ),
)
