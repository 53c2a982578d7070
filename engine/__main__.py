"""`python -m engine`: the engine's commands, without the conformance suite."""

from engine.cli import main

main()
