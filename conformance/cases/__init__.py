"""What is tested: tiny models of each family that bite, and real ones, as frozen values."""

from conformance.cases import (
    deepseek_v3,
    gemma,
    gemma2,
    gemma3_text,
    gpt2,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
)
from conformance.cases.case import DRAWS, TIED_DRAWS, Case, Draw, RealCase
from conformance.cases.real import REAL_CASES

CASES: tuple[Case, ...] = (
    *gpt2.CASES,
    *llama.CASES,
    *mistral.CASES,
    *qwen2.CASES,
    *qwen3.CASES,
    *gemma.CASES,
    *gemma2.CASES,
    *gemma3_text.CASES,
    *phi3.CASES,
    *olmo2.CASES,
    *smollm3.CASES,
    *granite.CASES,
    *mixtral.CASES,
    *qwen3_moe.CASES,
    *gpt_oss.CASES,
    *deepseek_v3.CASES,
)

__all__ = ["CASES", "DRAWS", "REAL_CASES", "TIED_DRAWS", "Case", "Draw", "RealCase"]
