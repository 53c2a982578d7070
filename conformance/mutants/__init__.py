"""The catalogue of faults that must be caught, and the run that plants them one by one."""

from conformance.mutants.run import MutantReport, judge_together, print_mutants, run_mutants

__all__ = ["MutantReport", "judge_together", "print_mutants", "run_mutants"]
