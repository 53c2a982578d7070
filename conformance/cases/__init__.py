"""What is tested: tiny models of each family that bite, and real ones, as frozen values."""

from conformance.cases import llama
from conformance.cases.case import DRAWS, TIED_DRAWS, Case, Draw, RealCase
from conformance.cases.real import REAL_CASES

CASES: tuple[Case, ...] = llama.CASES

__all__ = ["CASES", "DRAWS", "REAL_CASES", "TIED_DRAWS", "Case", "Draw", "RealCase"]
