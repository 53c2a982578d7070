"""llama: Llama 1 to 3.x and what is built like them."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, YARN, Case, Draw, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case("llama-gqa", "llama", tiny(num_hidden_layers=3), seed=1, kept_as="float64"),
    Case(
        "llama-rope-llama3",
        "llama",
        tiny(
            vocab_size=71,
            max_position_embeddings=128,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,  # of the 8 pairs one turns faster, one lies between
                "original_max_position_embeddings": 16,
            },
        ),
        seed=3,
        kept_as="float64",
        prompt_tokens=29,
    ),
    Case(
        "llama-rope-linear",
        "llama",
        tiny(
            head_dim=12,
            hidden_size=44,
            rope_parameters=LINEAR,
        ),
        seed=3,
        kept_as="float64",
    ),
    Case(
        "llama-tied",
        "llama",
        tiny(
            hidden_size=42,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=20,
            tie_word_embeddings=True,
        ),
        seed=7,
        kept_as="float64",
        # Gates and ups beyond what any family clamps: real models have such activations.
        draws={
            "*gate_proj.weight": Draw(spread=6.0, inputs=-1),
            "*up_proj.weight": Draw(spread=6.0, inputs=-1),
            **TIED_DRAWS,
        },
    ),
    Case(
        # Far from position 0, through many chunks: positions, masks and the cache in the long run.
        # Scores and weights would grow with the square of the length, so they are not kept.
        "long-llama",
        "llama",
        tiny(
            hidden_size=24,
            intermediate_size=20,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=10,
            num_hidden_layers=1,
            max_position_embeddings=1024,
        ),
        seed=46,  # of few without a near-tie in so many positions
        prompt_tokens=520,
        decode_tokens=4,
        watch=("*[!s]", "logits"),
    ),
    Case(
        "llama-bias",
        "llama",
        tiny(
            hidden_size=54,
            num_attention_heads=6,
            num_key_value_heads=3,
            attention_bias=True,
            mlp_bias=True,
        ),
        seed=5,
        kept_as="float64",
    ),
    Case(
        # The base grows with every token beyond the context, and cached keys keep their old turns.
        "llama-rope-dynamic",
        "llama",
        one_kv_head(
            max_position_embeddings=16,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 4.0},
        ),
        seed=1,
        whole_prompts=True,
    ),
    Case(
        "llama-rope-yarn",
        "llama",
        tiny(hidden_size=44, max_position_embeddings=96, rope_parameters=YARN),
        seed=2,
        prompt_tokens=27,
        decode_tokens=4,
    ),
)
