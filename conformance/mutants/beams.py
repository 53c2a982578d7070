"""Faults of the beam search: what is chosen, when it ends, what an answer scores, whose cache a beam reads."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant

_REORDER = "huggingface/transformers#46612"
_STOPPING = "huggingface/transformers#20901"
_ENOUGH = "huggingface/transformers#25103"
_MEANING = "transformers, generation/utils.py, _beam_search"
_INVENTED = "invented for this catalogue"


def _beam(
    name: str,
    fault: str,
    source: str,
    old: str,
    new: str,
    expected: str,
    file: str = "generate/beam.py",
    cases: str | None = None,
) -> Mutant:
    return Mutant(
        f"beam-{name}", "beams", fault, source, f"engine/{file}", old, new, expected, cases=cases
    )


BEAMS: tuple[Mutant, ...] = (
    # -- what an answer scores ---------------------------------------------------------------------
    _beam(
        "penalty-counts-the-prompt",
        "ranks answers by their length with the prompt's",
        "huggingface/transformers#26624",
        "self.asked.score(ended.total, len(ended.tokens))",
        "self.asked.score(ended.total, len(self.request.prompt) + len(ended.tokens))",
        "beams.search",
    ),
    _beam(
        "penalty-without-the-end",
        "leaves the last token out of an answer's length",
        "huggingface/transformers#8722",
        "logprobs / length**self.length_penalty",
        "logprobs / max(1, length - 1) ** self.length_penalty",
        "beams.search beams.score",
        file="generate/beam_params.py",
    ),
    _beam(
        "penalty-upside-down",
        "takes a larger penalty to favour short answers, as its name says",
        "huggingface/transformers#18208",
        "logprobs / length**self.length_penalty",
        "logprobs * length**self.length_penalty",
        "beams.search beams.score",
        file="generate/beam_params.py",
    ),
    _beam(
        "always-the-mean",
        "scores by the mean whatever the penalty is",
        "NVIDIA/TensorRT-LLM#1386",
        "logprobs / length**self.length_penalty",
        "logprobs / length",
        "beams.search beams.score",
        file="generate/beam_params.py",
    ),
    _beam(
        "totals-not-kept",
        "chooses by the last token's log-probability alone",
        _INVENTED,
        "totals = scores + scores.new_tensor(",
        "totals = scores + 0 * scores.new_tensor(",
        "beams.search beams.score",
    ),
    _beam(
        "end-scores-nothing",
        "leaves the end token's log-probability out of an answer's score",
        "facebookresearch/ParlAI#2064",
        "self.running[parent].tokens, token), total, entries)",
        "self.running[parent].tokens, token), "
        "self.running[parent].total if token in self.request.ends else total, entries)",
        "beams.search beams.score",
    ),
    # -- what is chosen from -----------------------------------------------------------------------
    _beam(
        "logits-for-logprobs",
        "adds up logits",
        _MEANING,
        "logits.cpu().double().log_softmax(-1)",
        "logits.cpu().double()",
        "beams.search beams.score",
    ),
    _beam(
        "processors-see-logits",
        "gives the processors logits and takes log-probabilities of what they make of them",
        _MEANING,
        "penalised(row, request.params, self._history(beam))\n"
        "                for row, beam in zip(logprobs, self.running, strict=True)",
        "penalised(row, request.params, self._history(beam)).log_softmax(-1)\n"
        "                for row, beam in zip(logits, self.running, strict=True)",
        "beams.search beams.score",
    ),
    _beam(
        "processed-renormalised",
        "makes log-probabilities of what the processors leave once more",
        _MEANING,
        "penalised(row, request.params, self._history(beam))",
        "penalised(row, request.params, self._history(beam)).log_softmax(-1)",
        "beams.search beams.score",
    ),
    _beam(
        "history-of-the-best",
        "has the processors look at the best beam's tokens for all of them",
        _INVENTED,
        "History(request.prompt, beam.tokens, request.ends",
        "History(request.prompt, self.running[0].tokens, request.ends",
        "beams.search",
    ),
    _beam(
        "history-without-the-prompt",
        "hides the prompt from the processors",
        "PaddlePaddle/PaddleNLP#1108",
        "History(request.prompt, beam.tokens, request.ends",
        "History((), beam.tokens, request.ends",
        "beams.search",
    ),
    # -- who goes on -------------------------------------------------------------------------------
    _beam(
        "begins-with-copies",
        "begins with as many equal beams as are asked for, which stay equal",
        _MEANING,
        "self.running: list[Beam] = [Beam()]",
        "self.running: list[Beam] = [Beam()] * self.asked.beams",
        "beams.search",
    ),
    _beam(
        "as-many-candidates-as-beams",
        "looks at no more candidates than there are beams, so that ends leave gaps",
        _ENOUGH,
        "self.asked.beams * max(2, 1 + len(self.request.ends))",
        "self.asked.beams",
        "beams.search",
    ),
    _beam(
        "any-end-counts",
        "takes an answer that ends behind the best beams",
        "huggingface/transformers#8722",
        "if rank >= self.asked.beams if ends else",
        "if False if ends else",
        "beams.search",
    ),
    _beam(
        "one-beam-less",
        "goes on with one beam less than was asked for",
        _INVENTED,
        "else len(parents) == self.asked.beams",
        "else len(parents) == self.asked.beams - 1",
        "beams.search",
    ),
    # -- when it ends ------------------------------------------------------------------------------
    _beam(
        "always-early",
        "ends the search as soon as there are answers enough",
        "neulab/xnmt#572",
        "return self.asked.early_stopping is True or",
        "return True or",
        "beams.search",
    ),
    _beam(
        "never-early",
        "goes on in hope though answers enough are enough",
        "dmlc/gluon-nlp#171",
        "return self.asked.early_stopping is True or",
        "return",
        "beams.search",
    ),
    _beam(
        "half-of-the-answers-are-enough",
        "asks whether to go on when half of the answers are there",
        "OpenNMT/OpenNMT-py#999",
        "if len(self.ended) < self.asked.beams:",
        "if len(self.ended) < max(1, self.asked.beams // 2):",
        "beams.search",
    ),
    _beam(
        "better-than-the-best",
        "goes on only for what may be better than the best answer",
        _STOPPING,
        "self._hope() <= self._score(self.ended[-1])",
        "self._hope() <= self._score(self.ended[0])",
        "beams.search",
    ),
    _beam(
        "hopes-as-long-as-possible",
        "always takes the best beam to become as long as it may",
        "facebookresearch/XLM#106",
        'longest = self.asked.early_stopping == "never" and',
        "longest =",
        "beams.search",
    ),
    _beam(
        "hopes-as-it-is",
        "always takes the best beam to be as long as it is",
        _STOPPING,
        "length = self.request.limit if longest else self.length",
        "length = self.length",
        "beams.search",
    ),
    _beam(
        "hopes-without-penalty",
        "holds the best beam's total against an answer's score",
        _INVENTED,
        "return self.asked.score(self.running[0].total, length)",
        "return self.running[0].total",
        "beams.search",
    ),
    _beam(
        "cut-off-is-no-answer",
        "forgets the beams that are as long as they may be",
        "Sachin19/seq2seq-con#4",
        "            if ends:\n                self._end(beam)",
        "            if ends and token in self.request.ends:\n                self._end(beam)\n"
        "            elif ends:\n                continue",
        "beams.search",
    ),
    _beam(
        "one-token-short",
        "cuts answers off one token before they are as long as they may be",
        _INVENTED,
        "last = self.length == self.request.limit",
        "last = self.length >= self.request.limit - 1",
        "beams.search",
    ),
    _beam(
        "the-worst-first",
        "keeps the worst answers",
        _INVENTED,
        "key=self._score, reverse=True)[",
        "key=self._score)[",
        "beams.search",
    ),
    _beam(
        "in-order-of-arrival",
        "gives the answers that ended first",
        _INVENTED,
        "sorted([*self.ended, beam], key=self._score, reverse=True)[",
        "[*self.ended, beam][",
        "beams.search",
    ),
    # -- whose cache a beam reads ------------------------------------------------------------------
    _beam(
        "rooms-stay-where-they-are",
        "goes on in the rooms of the step before, whoever survived",
        _REORDER,
        "self._follow(parents)\n",
        "self._follow([min(i, len(self.rooms) - 1) for i in range(len(parents))])\n",
        "beams.cache",
    ),
    _beam(
        "two-beams-in-one-room",
        "gives a beam's second continuation the room of the first",
        _INVENTED,
        "rooms.append(self.cache.fork(room) if parent in given else room)",
        "rooms.append(room)",
        "beams.cache",
    ),
    _beam(
        "dead-beams-stay",
        "never gives back the rooms of beams that died",
        _INVENTED,
        "if i not in parents:  #",
        "if False:  #",
        "beams.cache",
    ),
    _beam(
        "logits-in-the-order-of-rows",
        "leaves the logits in the order of the cache's rows",
        _REORDER,
        "torch.cat(rows)[torch.tensor(order).argsort()]",
        "torch.cat(rows)",
        "beams.cache",
    ),
    _beam(
        "order-turned-twice",
        "takes the order of the rows for the way back",
        _INVENTED,
        "torch.cat(rows)[torch.tensor(order).argsort()]",
        "torch.cat(rows)[torch.tensor(order)]",
        "beams.cache",
    ),
    _beam(
        "tokens-in-the-order-of-beams",
        "feeds each room the token of another beam",
        _REORDER,
        "self._pass([tokens[i] for i in some]",
        "self._pass([tokens[i] for i in sorted(some)]",
        "beams.cache",
    ),
    _beam(
        "copy-of-an-empty-room",
        "gives a beam's second continuation an empty room",
        _INVENTED,
        "rooms.append(self.cache.fork(room) if parent in given else room)",
        "rooms.append(self.cache.open() if parent in given else room)",
        "beams.cache",
    ),
    # -- what is said of it ------------------------------------------------------------------------
    _beam(
        "usage-of-all-beams",
        "counts the prompt once for each beam",
        _INVENTED,
        "n_prompt = len(request.prompt)",
        "n_prompt = len(request.prompt) * len(answers)",
        "beams.answer",
        file="generate/request.py",
    ),
)
