"""Readers of tokenizer files. Every format is read into the stages of `engine.tokenizer.stages`.

`open.py` finds the file and its format. `definition.py` reads the object of a tokenizer.json, with
a module for each of its components: normalizers, splitters (pre-tokenizers), models,
post_processors, decoders, fitting (truncation and padding). Every other format is turned into such an object first,
put together from `parts.py`: sentencepiece, tiktoken, tekken, gguf; `ranked.py` has it read. What
the files beside say is read by `surroundings.py` and `wishes.py`.
"""
