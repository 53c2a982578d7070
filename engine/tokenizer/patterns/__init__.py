"""Patterns of tokenizer files: written for Oniguruma, run by `regex`, and by `re` where that can."""
