"""How fast: this engine beside transformers and beside the machine's own limits, in one run.

Figures of different runs say little, as machines are shared and clocks move: what is kept are ratios
of what was timed in turns.
"""
