"""The invariance matrix: however requests are cut, packed, paged, shared or resumed, nothing may change.

`axes` says what varies, `covering` picks cells, `play` runs one, `naive` is what it is held against,
`verdict` judges, `run` gathers, `controls` are the faults that must be seen. Nothing is imported here,
as those are planted before the engine is.
"""
