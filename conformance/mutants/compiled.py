"""Faults of compiled steps, which are no part of a golden's own run: `expected` is the test that must fail."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_DYNAMO = "the PyTorch documentation, torch.compile: Dynamic Shapes"
_STEPS = "test_compiled.py::test_steps_are_those_of_the_decoder"
_LONGER = "test_compiled.py::test_a_longer_sequence_takes_a_second_graph"
_FAMILIES = "test_compiled.py::test_each_family_is_one_graph_inside_the_envelope"


def _compiled(
    id: str, wrong: str, file: str, old: str, new: str, test: str, source: str = "invented"
) -> Mutant:
    return fault(f"compiled-{id}", wrong, source, file, old, new, test)


def _single(id: str, wrong: str, old: str, new: str, test: str) -> Mutant:
    return _compiled(f"single-{id}", wrong, "backends/single.py", old, new, test)


COMPILED: tuple[Mutant, ...] = (
    _compiled(
        "given-back-at-once",
        "has memory that was freed given back after each pass",
        "memory.py",
        "        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)",
        "        mallopt(M_TRIM_THRESHOLD, 2**17)",
        "test_memory.py::test_what_is_freed_is_kept_unless_the_environment_says_otherwise",
    ),
    _compiled(
        "kept-for-good",
        "refuses a cache although what is kept would do",
        "cache/cache.py",
        "            give_back()",
        "            pass",
        "test_memory.py::test_what_is_kept_is_given_back_before_a_cache_is_refused",
    ),
    _compiled(
        "first-stands-in",
        "computes the first sequence in the rows that nobody has, with the token of the last",
        "cache/cache.py",
        "rooms += rooms[-1:] * (rows - len(rooms))",
        "rooms += rooms[:1] * (rows - len(rooms))",
        _STEPS,
    ),
    _compiled(
        "stand-ins-are-answered",
        "gives the logits of the rows that nobody has",
        "compiled.py",
        "[: len(parts)]",
        "[-len(parts) :]",
        _STEPS,
    ),
    _compiled(
        "gaps-overlooked",
        "takes any rows for the first ones",
        "cache/contiguous.py",
        "if rows == list(range(len(rows))):",
        "if len(rows) > 1:",
        _STEPS,
    ),
    _compiled(
        "ring-not-turned",
        "reads a ring as if its first slot were the oldest",
        "cache/contiguous.py",
        "newest - (newest - slots) % self.slots",
        "(slots + 0 * newest)",
        _STEPS,
    ),
    _compiled(
        "ring-off-by-one",
        "takes each slot of a ring for the one before",
        "cache/contiguous.py",
        "(newest - (newest - slots) % self.slots)",
        "(newest - (newest - slots) % self.slots + 1)",
        _STEPS,
    ),
    _compiled(
        "first-bucket-for-good",
        "reads no more keys than the first graph had",
        "cache/cache.py",
        "return max(BUCKET, 1 << (n - 1).bit_length())",
        "return BUCKET",
        _LONGER,
        _DYNAMO,
    ),
    _compiled(
        "bucket-to-the-length",
        "takes a graph for each number of keys",
        "cache/cache.py",
        "return max(BUCKET, 1 << (n - 1).bit_length())",
        "return n",
        _LONGER,
        _DYNAMO,
    ),
    _compiled(
        "warmed-up-alone",
        "warms up for one sequence, whatever may run at once",
        "compiled.py",
        "if fewer < most)",
        "if fewer < 1)",
        "test_compiled.py::test_what_was_warmed_up_is_not_compiled_again",
    ),
    _compiled(
        "bias-left-out",
        "leaves the biases out where few rows are mapped",
        "compiled.py",
        "(done if bias is None else done + bias)",
        "done",
        f"{_FAMILIES}[qwen2]",
    ),
    _compiled(
        "experts-of-one-token",
        "gives all tokens of a graph the first one's experts",
        "moe.py",
        "e = ids.flatten()",
        "e = ids.flatten(0, 1)[:1].expand(n, k).flatten()",
        "test_moe.py::test_it_equals_the_plain_twin",
    ),
    _compiled(
        "another-threads-graph",
        "takes what another thread compiles for a graph of its own",
        "moe.py",
        "torch.compiler.is_dynamo_compiling()",
        "torch.compiler.is_compiling()",
        "test_moe.py::test_a_graph_that_another_thread_compiles_changes_nothing",
    ),
    _compiled(
        "experts-unweighted",
        "adds the chosen experts up as they are",
        "moe.py",
        "linear(product, self.down, self.down_bias) * weights.view(-1, 1)",
        "linear(product, self.down, self.down_bias)",
        "test_moe.py::test_it_equals_the_plain_twin",
    ),
    _compiled(
        "constant-positions",
        "keeps the positions of the step that was compiled",
        "compiled.py",
        "logits: Tensor = self._graph(ids, step, cache.layers)",
        "logits: Tensor = self._graph(ids, self.__dict__.setdefault('first', step), cache.layers)",
        _STEPS,
        _DYNAMO,
    ),
    _compiled(
        "graphs-of-all-decoders",
        "runs the graph of another decoder of the same sizes",
        "compiled.py",
        "shared.__code__.replace()",
        "shared.__code__",
        "test_compiled.py::test_a_decoder_has_graphs_of_its_own",
        _DYNAMO,
    ),
    _compiled(
        "unguarded",
        "runs the graph of a shorter sequence for a longer one",
        "compiled.py",
        'not guard.name.startswith("self.")',
        "False",
        _LONGER,
        _DYNAMO,
    ),
    _compiled(
        "all-layers-alike",
        "runs the first layer's code for all layers, whatever their windows",
        "compiled.py",
        "@torch.compiler.nested_compile_region",
        "@torch.compiler.nested_compile_region(reuse_hash_fn=lambda *given: 0)",
        f"{_FAMILIES}[gemma3]",
        _DYNAMO,
    ),
    _compiled(
        "kinds-overlooked",
        "takes layers for alike that differ in their ropes alone",
        "compiled.py",
        "if self.kind < 0:",
        "if False:",
        "test_alike.py::test_layers_that_differ_are_not_taken_for_alike",
    ),
    _compiled(
        "each-layer-by-itself",
        "compiles layers that are alike again and again",
        "compiled.py",
        "block = AlikeBlock if alike else Block",
        "block = Block",
        "test_compiled.py::test_layers_that_are_alike_are_captured_once",
        _DYNAMO,
    ),
    _compiled(
        "kinds-without-end",
        "asks torch for more kinds of layers than it allows",
        "compiled.py",
        "alike = not self._on_cuda and len(set(kinds)) <= MOST_KINDS",
        "alike = not self._on_cuda",
        "test_alike.py::test_more_kinds_than_torch_allows_are_part_of_the_graph",
    ),
    _compiled(
        "lanes-of-nobody",
        "takes the lanes that are left over for those of the first rows",
        "linear.py",
        "return sums[:, :n].t()",
        "return sums[:, -n:].t()",
        _STEPS,
    ),
    _compiled(
        "lanes-unfilled",
        "sums the first rows alone where they do not fill a vector",
        "linear.py",
        "(0, -n % LANES)",
        "(0, -(n % LANES))",
        "test_linear.py::test_a_graphs_maps_are_torchs",
    ),
    _compiled(
        "one-place",
        "reads the weights in one place, however many rows there are",
        "linear.py",
        "weight.split(-(-len(weight) // STREAMS))",
        "weight.split(len(weight))",
        "test_linear.py::test_many_rows_read_a_weight_in_several_places",
    ),
    _single(
        "sinks-dropped",
        "leaves the sinks out",
        "w = softmax(s.masked_fill(~view.visible, -torch.inf), attn.sinks)",
        "w = softmax(s.masked_fill(~view.visible, -torch.inf), None)",
        f"{_FAMILIES}[gpt-oss]",
    ),
    _single(
        "softcap-dropped",
        "leaves the softcap out",
        "softcap(s.view(B, H, 1, S) * attn.scale, attn.softcap)",
        "s.view(B, H, 1, S) * attn.scale",
        f"{_FAMILIES}[gemma2]",
    ),
    _single(
        "groups-turned",
        "puts the first query head of each key/value head before all second ones",
        "for query in queries], 2)",
        "for query in queries], 1)",
        f"{_FAMILIES}[qwen2]",
    ),
    _single(
        "unmasked",
        "reads the slots that hold no token yet",
        "s.masked_fill(~view.visible, -torch.inf)",
        "s",
        _STEPS,
    ),
    _single(
        "bias-dropped",
        "leaves the user's bias out",
        "s if view.bias is None else s + view.bias",
        "s",
        "test_compiled.py::test_a_users_own_attention_is_in_graphs",
    ),
    _compiled(
        "watched-in-vain",
        "runs a graph although somebody watches a probe",
        "compiled.py",
        "if not alike or watched(self) or watched(cache):",
        "if not alike:",
        "test_compiled.py::test_what_is_watched_is_not_compiled",
    ),
    _compiled(
        "cache-to-fit",
        "makes each cache as long as its answer, so that each has graphs of its own",
        "compiled.py",
        "tokens = min(bucket(capacity), max(capacity, context))",
        "tokens = capacity",
        "test_compiled.py::test_shapes_are_few",
        _DYNAMO,
    ),
)
