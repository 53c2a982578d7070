"""Faults of reading a checkpoint: names, ties, layouts, dtypes."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

WEIGHTS: tuple[Mutant, ...] = (
    fault(
        "norms-exchanged",
        "takes the pre-MLP norm for the pre-attention one",
        "transformers, whose post_attention_layernorm means two norms",
        "families/common.py",
        "in {**_LINEARS, **norms}.items():",
        'in {**_LINEARS, "pre_attn_norm": "post_attention_layernorm", '
        '"pre_mlp_norm": "input_layernorm"}.items():',
        "pre_attn_norm pre_mlp_norm",
    ),
    fault(
        "head-not-tied",
        "leaves a tied head at zero",
        "Press and Wolf 2017",
        "weights/load.py",
        "_set(decoder, name, there)",
        "_set(decoder, name, nn.Parameter(torch.zeros_like(there), requires_grad=False))",
        "logits",
        cases="llama-tied",
    ),
    fault(
        "gguf-rope-interleaved",
        "takes q and k from a GGUF file as they stand",
        "llama.cpp, convert_hf_to_gguf.py",
        "weights/load.py",
        "return deinterleave(tensor, rule.heads)",
        "return tensor",
        # SmolLM2's compact golden watches three layers; of the others it sees the residual stream.
        "attn.q attn.k after_attn",
        family="gguf",
    ),
    fault(
        "gguf-heads",
        "reorders the rows of q by the number of key/value heads",
        "llama.cpp, convert_hf_to_gguf.py",
        "weights/load.py",
        'attn.n_heads if verb.heads == "n_heads" else attn.n_kv_heads',
        "attn.n_kv_heads",
        "attn.q after_attn",
        family="gguf",
    ),
    fault(
        "keys-values-exchanged",
        "loads the value projection as keys and the keys' as values: shapes fit",
        "EfficientMoE/MoE-Infinity#110",
        "families/common.py",
        '"attn.k": "self_attn.k_proj",\n    "attn.v": "self_attn.v_proj",',
        '"attn.k": "self_attn.v_proj",\n    "attn.v": "self_attn.k_proj",',
        "attn.k attn.v",
    ),
    fault(
        "gate-up-exchanged",
        "loads the gate as up and up as the gate: shapes fit",
        "vllm-project/vllm#36997",
        "families/common.py",
        '"mlp.gate": "mlp.gate_proj",\n    "mlp.up": "mlp.up_proj",',
        '"mlp.gate": "mlp.up_proj",\n    "mlp.up": "mlp.gate_proj",',
        "mlp.gate mlp.up",
    ),
    fault(
        "layers-in-file-order",
        "counts layers as the file's names sort: 10 comes before 2",
        "the order of safe_open(...).keys()",
        "weights/load.py",
        'source = verb.source.replace("{i}", found[1]) if found else verb.source',
        'n = len(spec.layers); source = verb.source.replace("{i}", '
        "sorted(map(str, range(n)))[int(found[1])]) if found else verb.source",
        "pre_attn_norm attn.q attn.k attn.v attn.out after_attn pre_mlp_norm "
        "mlp.gate mlp.up mlp.down out",
        family="gguf",
    ),
    fault(
        "weights-narrowed",
        "rounds weights to bfloat16 on the way to float32",
        "huggingface/trl#4770",
        "weights/load.py",
        "checkpoint.read(rule.source, dtype)",
        "checkpoint.read(rule.source, dtype).bfloat16().to(dtype)",
        "embed attn.q attn.k attn.v attn.out mlp.gate mlp.up mlp.down after_attn out logits",
        family="gguf",
    ),
    fault(
        "last-tensor-not-loaded",
        "leaves the last layer's down projection as memory had it",
        "sgl-project/sglang#32279",
        "weights/load.py",
        "        for name, rule in stored.items():\n            values =",
        "        for name, rule in stored.items():\n            values = torch.zeros("
        "decoder.get_parameter(name).shape, dtype=dtype) "
        'if name.endswith(f"{len(decoder.layers) - 1}.mlp.down.weight") else',
        "mlp.down",
    ),
    fault(
        "biases-zeroed",
        "skips biases of the feed-forward that are in the file",
        "mlc-ai/mlc-llm#3494",
        "weights/load.py",
        "        for name, rule in stored.items():\n            values =",
        "        for name, rule in stored.items():\n            values = torch.zeros("
        "decoder.get_parameter(name).shape, dtype=dtype) "
        'if ".mlp." in name and name.endswith(".bias") else',
        "mlp.gate mlp.up mlp.down",
    ),
    fault(
        "head-tied-always",
        "shares the embedding with the head although the file has a head of its own",
        "Press and Wolf 2017",
        "weights/load.py",
        "_tie(decoder, name, rule.verb.target, both=name in stored)",
        "_tie(decoder, name, rule.verb.target, both=name in stored)\n"
        '    _set(decoder, "logits.weight", decoder.get_parameter("embed.weight"))',
        "logits",
    ),
    fault(
        "gguf-bos-always",
        "puts BOS before a prompt whose file says there is none",
        "abetlen/llama-cpp-python#1439",
        "tokenizer/formats/gguf.py",
        'if token_id is None or not self._metadata.get(f"tokenizer.ggml.{switch}", default):',
        'if token_id is None or key != "bos_token_id":',
        "tokenizer.encode",
        family="gguf",
    ),
    fault(
        "gguf-rows-of-the-block",
        "decodes the rows of a quantised block in the reverse order",
        "llama.cpp, gguf-py quants",
        "weights/gguf.py",
        "decoded[at : at + step] = torch.from_numpy(block)",
        "decoded[at : at + step] = torch.from_numpy(block).flip(0)",
        "embed attn.q attn.k attn.v attn.out mlp.gate mlp.up mlp.down after_attn out logits",
        family="gguf",
    ),
)
