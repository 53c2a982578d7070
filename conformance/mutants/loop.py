"""Faults of the engine's own loop: prefill in chunks, the step from one token to the next."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_FORWARD = "self.decoder(batch, self.cache, parts, wanted)"


def _alone(when: str) -> str:
    """A pass of one request that sees nothing of the passes before, for those `when` says so."""
    return (
        f"(setattr(parts[0].room, 'length', parts[0].room.length + len(ids)), "
        "self.decoder(batch, type(self.cache)(self.decoder.spec, len(ids), longest_pass=len(ids)), "
        f"last=1))[1] if {when} else {_FORWARD}"
    )


LOOP: tuple[Mutant, ...] = (
    fault(
        "decode-feeds-the-prompt",
        "feeds the prompt's last token instead of the one just chosen",
        "huggingface/transformers#43082",
        "generate/speculation.py",
        "*self.request.tokens[first : first + self.part.n]",
        "*(self.request.tokens[first : first + self.part.n] "
        "if first < len(self.request.prompt) else self.request.prompt[-1:])",
        "generate",
    ),
    fault(
        "first-position-sampled",
        "samples from the prompt's first position",
        "invented for this catalogue",
        "decoder.py",
        "x if places is None else x.flatten(0, 1)[None, places]",
        "x if places is None else x[:, :1]",
        "generate",
    ),
    fault(
        "greedy-least-likely",
        "takes the least likely token for the most likely one",
        "invented for this catalogue",
        "generate/sample.py",
        "logit, token = logits.max(dim=-1)",
        "logit, token = logits.min(dim=-1)",
        "generate",
    ),
    fault(
        "prompt-cut-to-its-head",
        "feeds the first chunk of a long prompt and no other",
        "JustVugg/colibri#506",
        "generate/request.py",
        "self.tokens = list(prompt)",
        "self.tokens = list(prompt)[:512]",
        "generate",
        family="long",
    ),
    fault(
        "prompt-cut-to-its-tail",
        "feeds the last chunk of a long prompt and no other",
        "sgl-project/sglang#3910",
        "generate/request.py",
        "self.tokens = list(prompt)",
        "self.tokens = list(prompt)[-(len(prompt) % 512) :]",
        "generate",
        family="long",
    ),
    fault(
        "chunk-in-a-cache-of-its-own",
        "gives every chunk of a long prompt an empty cache",
        "huggingface/transformers#43082",
        "generate/scheduler.py",
        _FORWARD,
        _alone("len(ids) > 1 and parts[0].room.length"),
        "generate",
        family="long",
    ),
    fault(
        "decode-without-the-past",
        "decodes every token against an empty cache",
        "mlx-node/mlx-node#33",
        "generate/scheduler.py",
        _FORWARD,
        _alone("len(ids) == 1"),
        "generate",
    ),
    fault(
        "last-token-from-old-logits",
        "stops decoding one step too early and chooses the last token twice",
        "ggml-org/llama.cpp#7198",
        "generate/request.py",
        "scores = self._sampler.scores(logits, self._history())",
        "old = len(self.pieces) == self.limit - 1 > 0; "
        "logits, self.old = self.old if old else logits, logits; "
        "scores = self._sampler.scores(logits, self._history())",
        "generate",
        cases="llama-gqa",  # whose answer has no token twice
    ),
    fault(
        "one-token-short",
        "gives one token less than was asked for",
        "pegainfer-project/pegainfer#238",
        "generate/request.py",
        "n == self.limit\n",
        "n >= self.limit - 1\n",
        "generate",
    ),
    fault(
        "first-token-fed-twice",
        "loses the prompt's first token and feeds its last one twice",
        "GeeeekExplorer/nano-vllm#213",
        "generate/request.py",
        "self.tokens = list(prompt)",
        "self.tokens = [*prompt[1:], prompt[-1]]",
        "generate",
    ),
)
