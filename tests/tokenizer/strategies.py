"""What the tests of the single stages take from the public strategies for texts."""

from conformance.strategies.texts import CHARACTERS, MARKS, SCRIPTS, SPACES, assigned

__all__ = ["CHARACTERS", "MARKS", "SCRIPTS", "SPACES", "assigned"]
