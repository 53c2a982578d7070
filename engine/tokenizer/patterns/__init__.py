"""Patterns of tokenizer files: written for Oniguruma, run by `regex`, or by `re` where it can."""
