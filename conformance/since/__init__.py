"""`lockstep check --since REV`: two versions of the engine, told apart bit by bit and by envelope."""
