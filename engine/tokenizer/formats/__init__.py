"""Readers of tokenizer files. Every format is read into the stages of `engine.tokenizer.stages`."""
