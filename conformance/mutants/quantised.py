"""Faults of quantised weights, which are no part of a golden's own run: `expected` is the test that must fail."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_EIGHT = "test_eight_bits_are_off_by_half_a_step_and_steps_are_as_small_as_can_be"
_FOUR = "test_four_bits_are_off_by_half_a_step_and_steps_are_as_small_as_can_be"
_PRODUCTS = "test_products_are_those_of_the_numbers"
_LOADED = "test_a_loaded_model_is_the_plain_one_with_other_numbers_in_its_maps"
_LLM_INT8 = "Dettmers et al. 2022 (LLM.int8()), section 2"
_GPTQ = "Frantar et al. 2023 (GPTQ), section 4"


def _quantised(
    id: str, wrong: str, old: str, new: str, test: str, source: str, file: str = "quantised.py"
) -> Mutant:
    return fault(f"quantised-{id}", wrong, source, file, old, new, f"test_quantised.py::{test}")


QUANTISED: tuple[Mutant, ...] = (
    _quantised(
        "8-bits-one-scale",
        "takes one step for all rows",
        "rows.abs().amax(-1, keepdim=True) / 127",
        "rows.abs().amax().expand(len(rows), 1) / 127",
        _EIGHT,
        _LLM_INT8,
    ),
    _quantised(
        "8-bits-to-128",
        "makes the largest number 128, which is none of eight bits",
        "rows.abs().amax(-1, keepdim=True) / 127",
        "rows.abs().amax(-1, keepdim=True) / 128",
        _EIGHT,
        _LLM_INT8,
    ),
    _quantised(
        "8-bits-cut-off",
        "cuts off what it should round",
        "return (rows / steps.float()).round().to(torch.int8), steps",
        "return (rows / steps.float()).to(torch.int8), steps",
        _EIGHT,
        _LLM_INT8,
    ),
    _quantised(
        "step-after-rounding",
        "goes by a step that is rounded afterwards",
        "return (rows / steps.float())",
        "return (rows * 127 / rows.abs().amax(-1, keepdim=True).clamp(min=1e-35))",
        _EIGHT,
        _LLM_INT8,
    ),
    _quantised(
        "step-of-the-row-before",
        "multiplies few rows by the step of the row before",
        "return sums * self.steps[at][..., 0]",
        "return sums * self.steps.roll(1, -2)[at][..., 0]",
        _PRODUCTS,
        _LLM_INT8,
    ),
    _quantised(
        "middle-lost",
        "forgets the middle of the second half of each group",
        "((bits >> 4) - 8) * steps + middles",
        "((bits >> 4) - 8) * steps",
        _PRODUCTS,
        _GPTQ,
    ),
    _quantised(
        "middle-before-rounding",
        "goes by a middle that is rounded afterwards",
        "middle = middles.float()",
        "middle = low + 8 * steps",
        _FOUR,
        _GPTQ,
    ),
    _quantised(
        "halves-swapped",
        "puts the first half of a group where the second belongs",
        "first | second << 4",
        "second | first << 4",
        _PRODUCTS,
        "invented",
    ),
    _quantised(
        "group-off-by-one",
        "begins each group one input too late",
        "groups = rows.unflatten(-1, (-1, GROUP))",
        "groups = rows.roll(-1, -1).unflatten(-1, (-1, GROUP))",
        _FOUR,
        _GPTQ,
    ),
    _quantised(
        "symmetric-range",
        "never uses the lowest of sixteen numbers",
        ".clamp(-8, 7)",
        ".clamp(-7, 7)",
        _FOUR,
        _GPTQ,
    ),
    _quantised(
        "bias-left-out",
        "leaves the bias out beside a quantised weight",
        "return done if bias is None else done + bias",
        "return done",
        _LOADED,
        "invented",
        "linear.py",
    ),
    _quantised(
        "head-left",
        "leaves the head as it is",
        "for leaf in _weights(module):",
        'for leaf in _weights(module) if path != "logits" else ():',
        _LOADED,
        "invented",
        "weights/quantise.py",
    ),
    _quantised(
        "head-tied",
        "shares the table with the head, which is quantised no more",
        "return Rename(there.source) if isinstance(there, Tie) else there",
        "return verb",
        _LOADED,
        "Press and Wolf 2017",
        "weights/quantise.py",
    ),
)
