"""Faults of the engine's own loop: prefill in chunks, the step from one token to the next."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

LOOP: tuple[Mutant, ...] = (
    fault(
        "decode-feeds-the-prompt",
        "feeds the prompt's last token instead of the one just chosen",
        "huggingface/transformers#43082",
        "generate/engine.py",
        "logits = self.decode(token, cache)",
        "logits = self.decode(ids[-1], cache)",
        "generate",
    ),
    fault(
        "first-position-sampled",
        "samples from the prompt's first position",
        "invented for this catalogue",
        "decoder.py",
        "x[:, step.last] if last_only else x",
        "x[:, :1] if last_only else x",
        "generate",
    ),
    fault(
        "greedy-least-likely",
        "takes the least likely token for the most likely one",
        "invented for this catalogue",
        "generate/sample.py",
        "logits.argmax()",
        "logits.argmin()",
        "generate",
    ),
    fault(
        "prompt-cut-to-its-head",
        "feeds the first chunk of a long prompt and no other",
        "JustVugg/colibri#506",
        "generate/engine.py",
        "for chunk in batch.split(PREFILL_CHUNK, dim=1):",
        "for chunk in batch[:, :PREFILL_CHUNK].split(PREFILL_CHUNK, dim=1):",
        "generate",
        family="long",
    ),
    fault(
        "prompt-cut-to-its-tail",
        "feeds the last chunk of a long prompt and no other",
        "sgl-project/sglang#3910",
        "generate/engine.py",
        "for chunk in batch.split(PREFILL_CHUNK, dim=1):",
        "for chunk in batch.split(PREFILL_CHUNK, dim=1)[-1:]:",
        "generate",
        family="long",
    ),
    fault(
        "chunk-in-a-cache-of-its-own",
        "gives every chunk of a long prompt an empty cache",
        "huggingface/transformers#43082",
        "generate/engine.py",
        "self.decoder(chunk, cache, last_only=True",
        "self.decoder(chunk, self.new_cache(len(ids)), last_only=True",
        "generate",
        family="long",
    ),
    fault(
        "decode-without-the-past",
        "decodes every token against an empty cache",
        "mlx-node/mlx-node#33",
        "generate/engine.py",
        "logits: Tensor = self.decoder(torch.tensor([[token]], device=self.device), cache)",
        "logits: Tensor = self.decoder(\n"
        "            torch.tensor([[token]], device=self.device), self.new_cache(1)\n        )",
        "generate",
    ),
    fault(
        "last-token-from-old-logits",
        "stops decoding one step too early and chooses the last token twice",
        "ggml-org/llama.cpp#7198",
        "generate/engine.py",
        "if n + 1 < n_max:",
        "if n + 2 < n_max:",
        "generate",
        cases="llama-gqa",  # whose answer has no token twice
    ),
    fault(
        "one-token-short",
        "gives one token less than was asked for",
        "pegainfer-project/pegainfer#238",
        "generate/engine.py",
        "last = self._room(ids, params) - 1",
        "last = self._room(ids, params) - 2",
        "generate",
    ),
    fault(
        "first-token-fed-twice",
        "feeds the prompt's last token again before the first step",
        "GeeeekExplorer/nano-vllm#213",
        "generate/engine.py",
        "seen = list(ids)\n        logits = self.prefill(seen, cache)\n",
        "seen = list(ids)\n        self.prefill(seen, cache)\n"
        "        logits = self.decode(ids[-1], cache)\n",
        "generate",
    ),
)
