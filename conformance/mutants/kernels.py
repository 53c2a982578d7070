"""Faults of torch's own products and kernels as the engine calls them: `expected` is the test that must fail.

Some are of calls that no processor makes, so that no golden shows them here.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_VARLEN = "the PyTorch documentation, torch.nn.attention.varlen"
_FLEX = "Dong et al. 2024 (FlexAttention), section 3"
_FLASH = "Dao 2023 (FlashAttention-2), section 3"
_WINDOW = "Beltagy et al. 2020 (Longformer), section 3.1"

_SLICES = "test_slices_are_put_together_in_order"
_TOLD = "test_on_cuda_flash_is_told_where_each_sequence_begins_and_ends"
_CAUSAL = "test_what_is_causal_and_nothing_else_is_known_from_shapes"
_NO_OTHER = "test_flash_takes_no_other_kernel"
_REFUSED = "test_where_flash_has_no_kernel_it_is_refused_by_name_and_not_chosen"
_FLEX_CUT = "test_flex_gives_the_logits_of_eager_however_they_are_cut"
_TWIN = "test_attention.py::test_backends_equal_the_plain_twin"
_LENGTHS = "test_flex_has_no_graph_of_its_own_for_a_new_length"


def _kernel(id: str, wrong: str, source: str, file: str, old: str, new: str, test: str) -> Mutant:
    return fault(f"kernel-{id}", wrong, source, file, old, new, f"test_backends.py::{test}")


def _flash(id: str, wrong: str, source: str, old: str, new: str, test: str) -> Mutant:
    return _kernel(f"flash-{id}", wrong, source, "backends/flash.py", old, new, test)


def _flex(id: str, wrong: str, source: str, old: str, new: str, test: str) -> Mutant:
    return _kernel(f"flex-{id}", wrong, source, "backends/flex.py", old, new, test)


def _slices(id: str, wrong: str, source: str, old: str, new: str) -> Mutant:
    return fault(f"kernel-slices-{id}", wrong, source, "mask.py", old, new, _TWIN)


def _linear(id: str, wrong: str, old: str, new: str, test: str) -> Mutant:
    expected = f"test_linear.py::{test}"
    return fault(f"kernel-linear-{id}", wrong, "invented", "linear.py", old, new, expected)


KERNELS: tuple[Mutant, ...] = (
    _linear(
        "slices-beside-rows",
        "puts the slices together as if each were of rows, not of outputs",
        "done.transpose(0, 1).flatten(1)",
        "done.flatten().view(len(rows), -1)",
        _SLICES,
    ),
    _linear(
        "rest-from-the-front",
        "takes the first outputs again for those that are left over",
        "weight[even:]",
        "weight[: len(weight) - even]",
        _SLICES,
    ),
    _linear(
        "sums-in-bfloat16",
        "sums a graph's products in the dtype of the weights",
        "(weight[at].float() * x.float()).sum(-1)",
        "(weight[at] * x).sum(-1).float()",
        "test_a_graphs_maps_in_half_precision_are_summed_in_float32",
    ),
    _linear(
        "float16-rounded-twice",
        "rounds a product in float32 before it adds the bias",
        "(done if bias is None else done + bias).to(x.dtype)",
        "done.to(x.dtype) if bias is None else done.to(x.dtype) + bias",
        "test_many_rows_of_float16_are_multiplied_in_float32",
    ),
    _linear(
        "float16-always",
        "multiplies float16 as it is, where that takes many times as long",
        'many and x.device.type == "cpu" and not _multiplies_float16()',
        "False",
        "test_many_rows_of_float16_are_multiplied_in_float32",
    ),
    _linear(
        "first-row-for-all",
        "sums the first row's products for each row of a graph",
        "inner(weight, ..., row)",
        "inner(weight, ..., rows[0])",
        "test_a_graphs_maps_are_torchs",
    ),
    _flash(
        "ends-at-the-first-query",
        "takes the keys of a chunk's first query for all that there are",
        _VARLEN,
        "(view.k_pos <= view.q_pos[:, -1:])",
        "(view.k_pos <= view.q_pos[:, :1])",
        _TOLD,
    ),
    _flash(
        "empty-slots-count",
        "counts slots without a token among a sequence's keys",
        _VARLEN,
        "(view.k_pos >= 0) & ",
        "",
        _TOLD,
    ),
    _flash(
        "keys-begin-like-queries",
        "lets keys begin where the queries do",
        _VARLEN,
        "Lengths(rows * T, rows * S,",
        "Lengths(rows * T, rows * T,",
        _TOLD,
    ),
    _flash(
        "window-without-its-own",
        "does not count the query's own key in its window",
        _WINDOW,
        "-1 if view.window is None else view.window - 1",
        "-1 if view.window is None else view.window",
        _TOLD,
    ),
    _flash(
        "any-kernel",
        "lets torch form all scores where its flash kernel does not fit",
        _FLASH,
        "sdpa_kernel(SDPBackend.FLASH_ATTENTION)",
        "sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])",
        _NO_OTHER,
    ),
    _flash(
        "padding-left-on",
        "leaves the zeros on the context that made values fit the keys",
        _FLASH,
        "wide[..., : v.shape[-1]]",
        "wide",
        _NO_OTHER,
    ),
    _flash(
        "float32-on-cuda",
        "is chosen on CUDA for a dtype that has no kernel",
        _VARLEN,
        "if dtype not in (torch.float16, torch.bfloat16):",
        "if False:",
        _REFUSED,
    ),
    _flash(
        "any-width-on-cuda",
        "is chosen on CUDA for heads that are too wide",
        _VARLEN,
        "> WIDEST:",
        "> 2 * WIDEST:",
        _REFUSED,
    ),
    _kernel(
        "whole-with-a-window",
        "takes a prompt that is longer than the window for plain causal",
        _WINDOW,
        "mask.py",
        "(self.window is None or self.window >= T)",
        "True",
        _CAUSAL,
    ),
    _kernel(
        "whole-behind-others",
        "takes a chunk for a whole prompt, so that its queries see the first keys alone",
        "pytorch/pytorch#103082",
        "mask.py",
        "return T == S and",
        "return T > 1 and",
        _CAUSAL,
    ),
    _kernel(
        "whole-though-custom",
        "takes a prompt for plain causal though the user narrows or weighs what is seen",
        "Press et al. 2022 (ALiBi), section 3",
        "mask.py",
        " and self.custom == PLAIN",
        "",
        _CAUSAL,
    ),
    _slices(
        "oldest-key-lost",
        "leaves out the oldest key that a slice of queries sees in its window",
        _WINDOW,
        "- self.window + 1\n",
        "- self.window + 2\n",
    ),
    _slices(
        "older-keys-overlooked",
        "cuts the keys of a slice of queries as if there were no older ones",
        "pytorch/pytorch#103082",
        "before + queries.stop",
        "queries.stop",
    ),
    _flex(
        "sinks-dropped",
        "leaves the sinks out",
        "pytorch/torchtitan#2211",
        "if attn.sinks is not None:",
        "if False:",
        _FLEX_CUT,
    ),
    _flex(
        "sinks-turned-round",
        "takes the sink from its score's other side of 0",
        "pytorch/torchtitan#2211",
        "sinks[h].to(known.dtype)",
        "-sinks[h].to(known.dtype)",
        _FLEX_CUT,
    ),
    _flex(
        "softcap-dropped",
        "does not bend scores",
        "Gemma Team 2024 (Gemma 2), section 2",
        "s = softcap(s, cap)",
        "s = s * 1.0",
        _FLEX_CUT,
    ),
    _flex(
        "window-dropped",
        "sees all earlier keys in layers with a window",
        _WINDOW,
        "visible(q_pos[b, t], k_pos[b, key], window)",
        "visible(q_pos[b, t], k_pos[b, key], None)",
        _FLEX_CUT,
    ),
    _flex(
        "first-positions-for-all",
        "masks every sequence of a pass by the positions of the first",
        _FLEX,
        "visible(q_pos[b, t], k_pos[b, key], window)",
        "visible(q_pos[b * 0, t], k_pos[b * 0, key], window)",
        _FLEX_CUT,
    ),
    _flex(
        "a-graph-for-each-length",
        "compiles the kernel anew for each number of keys",
        _FLEX,
        "dynamic=True",
        "dynamic=False",
        _LENGTHS,
    ),
)
