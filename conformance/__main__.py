"""`python -m conformance`: the `lockstep` command from a checkout that is not installed."""

from conformance.cli import main

main()
