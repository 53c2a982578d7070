"""Faults of what an inspection shows, which no golden sees: `expected` is the test that must fail."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_DOCUMENT, _CHOICES = "../inspect/test_document.py", "../inspect/test_choices.py"
_CACHES, _WORDS = "../inspect/test_caches.py", "../inspect/test_words.py"
_BLOCKS = f"{_DOCUMENT}::test_blocks_hold_the_largest_and_the_mean_of_what_can_be_seen"
_HABITS = f"{_DOCUMENT}::test_habits_are_means_over_rows_that_have_a_choice"
_TRACE = f"{_DOCUMENT}::test_weights_are_those_of_the_trace_command"
_LENS = f"{_DOCUMENT}::test_the_lens_reads_each_layer_by_the_last_norm_and_the_head"
_STAGES = f"{_CHOICES}::test_each_stage_is_what_the_steps_up_to_it_make"


def _inspect(id: str, wrong: str, file: str, old: str, new: str, test: str) -> Mutant:
    return fault(f"inspect-{id}", wrong, "invented", file, old, new, test)


INSPECT: tuple[Mutant, ...] = (
    _inspect(
        "digits-cut-off",
        "cuts the digits of weights off instead of rounding them",
        "inspect/numbers.py",
        "(weights.double() * 10_000).round().int()",
        "(weights.double() * 10_000).int()",
        _TRACE,
    ),
    _inspect(
        "entropy-in-nats",
        "gives entropies in nats and calls them bits",
        "inspect/attention.py",
        ".sum(-1) / math.log(2)",
        ".sum(-1)",
        _HABITS,
    ),
    _inspect(
        "oldest-key-is-the-first",
        "takes the oldest key that a ring holds for the first token",
        "inspect/attention.py",
        "first, oldest = self.rows, self.rows + T - S",
        "first, oldest = self.rows, 0",
        _BLOCKS,
    ),
    _inspect(
        "mean-of-the-invisible",
        "counts what a window hides in the means of blocks",
        "inspect/attention.py",
        "seen &= k > q[:, None] - self.window",
        "seen &= k > -1",
        _BLOCKS,
    ),
    _inspect(
        "first-row-counts",
        "counts the first token, which can look at nothing else, as one that looks at the first",
        "inspect/attention.py",
        "telling = q > 0",
        "telling = q >= 0",
        _HABITS,
    ),
    _inspect(
        "last-block-full",
        "divides the last block's entropies by as many rows as the others have",
        "inspect/attention.py",
        "[float(self.width)] * (side - 1) + [float(last)]",
        "[float(self.width)] * side",
        _HABITS,
    ),
    _inspect(
        "draw-before-penalties",
        "shows temperature and cuts before the penalties",
        "inspect/choices.py",
        "WITH_EVERY_CHOICE + WITH_A_DRAW * (params.temperature > 0)",
        "WITH_A_DRAW * (params.temperature > 0) + WITH_EVERY_CHOICE",
        _STAGES,
    ),
    _inspect(
        "greedy-cuts",
        "shows cuts where the likeliest token is taken",
        "inspect/choices.py",
        "WITH_A_DRAW * (params.temperature > 0)",
        "WITH_A_DRAW",
        f"{_CHOICES}::test_what_is_for_draws_alone_is_no_step_of_a_greedy_choice",
    ),
    _inspect(
        "step-by-step-alone",
        "shows each step of sampling as if it were the only one",
        "inspect/choices.py",
        "so_far |= {name: getattr(params, name) for name in changed}",
        'so_far = {"temperature": params.temperature, "max_tokens": params.max_tokens}'
        " | {name: getattr(params, name) for name in changed}",
        _STAGES,
    ),
    _inspect(
        "lens-without-norm",
        "reads layers by the head alone",
        "inspect/choices.py",
        "decoder.logits(decoder.final_norm(stream[None]))",
        "decoder.logits(stream[None])",
        _LENS,
    ),
    _inspect(
        "lens-of-the-first-token",
        "reads the first token's stream",
        "inspect/gather.py",
        "self._stream[layer + 1] = value[0, -1]",
        "self._stream[layer + 1] = value[0, 0]",
        _LENS,
    ),
    _inspect(
        "rank-from-one",
        "counts the chosen token among those that are likelier",
        "inspect/choices.py",
        "(shares > shares[:, chosen, None])",
        "(shares >= shares[:, chosen, None])",
        f"{_DOCUMENT}::test_the_last_layer_says_what_the_model_says",
    ),
    _inspect(
        "history-without-answer",
        "penalises by the prompt alone what it shows",
        "inspect/gather.py",
        "History(request.prompt, answer, request.ends, request.limit)",
        "History(request.prompt, (), request.ends, request.limit)",
        f"{_DOCUMENT}::test_the_last_stage_is_what_the_token_was_chosen_from",
    ),
    _inspect(
        "twin-is-the-same",
        "hangs its hooks on the decoder that serves others",
        "inspect/twin.py",
        "copy.deepcopy(getattr(decoder, name), shared)",
        "getattr(decoder, name)",
        f"{_DOCUMENT}::test_a_twin_shares_weights_and_no_hooks",
    ),
    _inspect(
        "twin-with-weights",
        "copies the weights",
        "inspect/twin.py",
        "copy.deepcopy(getattr(decoder, name), shared)",
        "copy.deepcopy(getattr(decoder, name))",
        f"{_DOCUMENT}::test_a_twin_shares_weights_and_no_hooks",
    ),
    _inspect(
        "views-are-new",
        "counts the bytes of views",
        "inspect/operations.py",
        '"view" if key in known else "new"',
        '"new"',
        f"{_DOCUMENT}::test_views_share_their_bytes_and_are_named",
    ),
    _inspect(
        "nobody-s-operations",
        "leaves what is computed for a probe with its parent",
        "inspect/operations.py",
        "if type(module) is Probe:",
        "if False:",
        f"{_DOCUMENT}::test_what_is_computed_for_a_probe_is_said_to_be_for_it",
    ),
    _inspect(
        "time-counted-twice",
        "goes on counting for the outer stage",
        "inspect/stages.py",
        "        self._switch()\n        self._open.append((place(path)[0], stage_of(path)))",
        "        self._open.append((place(path)[0], stage_of(path)))",
        "../inspect/test_stages.py::test_a_stage_within_another_stops_the_other_s_clock",
    ),
    _inspect(
        "special-after-all",
        "shows special tokens where the prompt has plain text",
        "inspect/words.py",
        "steps(tokenizer, text, allowed_tokens(parse_special))",
        "steps(tokenizer, text, allowed_tokens(True))",
        f"{_WORDS}::test_tokens_know_their_word_their_place_and_whether_they_are_special",
    ),
    _inspect(
        "nothing-held",
        "never says that text is held back",
        "inspect/words.py",
        '"held": self._decoded - self._out,',
        '"held": 0,',
        f"{_WORDS}::test_what_a_stop_string_may_begin_with_is_held_back",
    ),
    _inspect(
        "first-alternative",
        "names the first alternative that begins to match",
        "tokenizer/steps.py",
        "if match is not None and match.end() == end > start:",
        "if match is not None or which == 3:",
        f"{_WORDS}::test_a_word_names_the_alternative_that_cut_it",
    ),
    _inspect(
        "rightmost-merge",
        "merges the rightmost of equal pairs while somebody watches",
        "tokenizer/models/bpe.py",
        "at = ranks.index(rank)",
        "at = len(ranks) - 1 - ranks[::-1].index(rank)",
        f"{_WORDS}::test_merges_come_by_rank_the_leftmost_first",
    ),
    _inspect(
        "shared-heads-stay",
        "calls the cache of shared heads one of all heads",
        "inspect/caches.py",
        "replace(attn, n_kv_heads=attn.n_heads)",
        "replace(attn, n_kv_heads=attn.n_kv_heads)",
        f"{_CACHES}::test_comparisons_change_one_thing_alone",
    ),
    _inspect(
        "prompt-again-alone",
        "forgets the answer in what is read without a cache",
        "inspect/caches.py",
        "for p in range(prompt + step)",
        "for p in range(prompt)",
        f"{_CACHES}::test_work_is_counted_by_hand",
    ),
    _inspect(
        "unbounded-window",
        "multiplies with keys that a window hides",
        "inspect/caches.py",
        "min(position + 1, attn.window or position + 1)",
        "position + 1",
        f"{_CACHES}::test_windows_bound_what_a_token_is_multiplied_with",
    ),
    _inspect(
        "ring-never-round",
        "shows tokens that a ring has written over",
        "inspect/caches.py",
        "first = layout.first(room)",
        "first = 0",
        f"{_CACHES}::test_a_ring_comes_round",
    ),
    _inspect(
        "markup-in-names",
        "puts names into the page as markup",
        "inspect/page.py",
        'autoescape=select_autoescape(["html"])',
        "autoescape=False",
        "../inspect/test_page.py::test_hostile_text_is_never_markup",
    ),
)
