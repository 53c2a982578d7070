"""Faults on the way from ids to a text: decoding, streaming, stop strings."""

from __future__ import annotations

from functools import partial

from conformance.mutants.mutant import Mutant, fault

_fault = partial(fault, family="tokenizer")

STREAM: tuple[Mutant, ...] = (
    _fault(
        "tok-skip-all-added",
        "skips every added token, and with them what clients need to see",
        "openvinotoolkit/model_server#4168",
        "tokenizer/tokenizer.py",
        "{token.content for token in tokens if token.special}",
        "{token.content for token in tokens}",
        "tokenizer.decode tokenizer.stream",
    ),
    _fault(
        "tok-skip-nothing",
        "shows special tokens to a client that did not ask for them",
        "openvinotoolkit/model_server#4168",
        "tokenizer/tokenizer.py",
        "return None if skip_special_tokens and token in self._hidden else token",
        "return token",
        "tokenizer.decode tokenizer.stream",
    ),
    _fault(
        "tok-decode-ignores-bad-bytes",
        "drops bytes that are no text instead of showing U+FFFD",
        "antirez/ds4#815",
        "tokenizer/decode/byte_level.py",
        '.decode("utf-8", errors="replace")',
        '.decode("utf-8", errors="ignore")',
        "tokenizer.decode",
    ),
    _fault(
        "tok-unknown-id-crashes",
        "fails at an id that the model has and the vocabulary lacks",
        "pegainfer-project/pegainfer#673",
        "tokenizer/tokenizer.py",
        "token = self._spellings.get(token_id)",
        "token = self._spellings[token_id]",
        "tokenizer.decode tokenizer.stream",
    ),
    _fault(
        "tok-stream-half-characters",
        "turns each token into text on its own",
        "waybarrios/vllm-mlx#109",
        "tokenizer/decode/byte_level.py",
        "self._text.push(self._certain(text, ends)), False",
        'self._certain(text, ends).decode("utf-8", errors="replace"), False',
        "tokenizer.stream",
    ),
    _fault(
        "tok-stream-loses-tail",
        "forgets what is held back when the stream ends",
        "antirez/ds4#815",
        "tokenizer/decode/byte_level.py",
        "yield self._text.flush(), True",
        'self._text = Utf8Stream()\n        yield "", True',
        "tokenizer.stream",
    ),
    _fault(
        "tok-stream-waits",
        "shows nothing before the end",
        "sgl-project/sglang#34852",
        "tokenizer/stream.py",
        'return "" if token is None else self._new(self._text.push(token))',
        'self._all = getattr(self, "_all", ""); '
        'self._all += "" if token is None else self._text.push(token); return ""',
        "tokenizer.stream",
    ),
    _fault(
        "tok-stop-beginning-leaks",
        "sends the beginning of a stop string before it knows better",
        "vllm-project/vllm#3574",
        "generate/stop.py",
        "safe = len(held) - max((stop.seen for stop in self._stops), default=0)",
        "safe = len(held)",
        "tokenizer.stop",
    ),
    _fault(
        "tok-stop-within-pieces",
        "looks for stop strings in each piece alone",
        "vllm-project/vllm#3574",
        "generate/stop.py",
        "        held = self._held + text\n",
        "        held = self._held + text\n"
        "        self._stops = [Progress(stop._wanted) for stop in self._stops]\n",
        "tokenizer.stop",
    ),
    _fault(
        "tok-stop-rest-leaks",
        "sends what follows a stop string in the same piece",
        "vllm-project/vllm#3574",
        "generate/stop.py",
        "return held[: end if self._include else end - found[0].size]",
        "return held[: end - found[0].size] + held[end:]",
        "tokenizer.stop",
    ),
    _fault(
        "tok-stop-no-restart",
        "starts afresh after a mismatch and misses overlapping beginnings",
        "vllm-project/vllm#3574",
        "matching.py",
        "seen = self._shorter[seen]",
        "seen = 0",
        "tokenizer.stop",
    ),
    _fault(
        "tok-decode-by-character",
        "spells an added token character by character where it leaves the byte alphabet",
        "tokenizers, ByteLevel",
        "tokenizer/alphabet.py",
        'return codecs.charmap_encode(token, "strict", _BYTES)[0]',
        'return b"".join(c.encode() if (byte := CHARACTERS.find(c)) < 0 else bytes([byte]) for c in token)',
        "tokenizer.decode tokenizer.stream",
    ),
    _fault(
        "tok-decode-strips",
        "strips the text's first space",
        "huggingface/transformers#22710",
        "tokenizer/decode/byte_level.py",
        '.decode("utf-8", errors="replace")]',
        '.decode("utf-8", errors="replace").lstrip(" ")]',
        "tokenizer.decode",
    ),
    _fault(
        "tok-stream-glues-words",
        "strips the space at the beginning of each piece",
        "abetlen/llama-cpp-python#1375",
        "tokenizer/stream.py",
        'return "" if token is None else self._new(self._text.push(token))',
        'return "" if token is None else self._text.push(token).lstrip(" ")',
        "tokenizer.stream",
    ),
    _fault(
        "tok-stream-window-open",
        "holds everything back while the end is no whole character",
        "sgl-project/sglang#34852",
        "tokenizer/decode/byte_level.py",
        "yield self._text.push(self._certain(text, ends)), False",
        'self._open = getattr(self, "_open", b"") + self._certain(text, ends)\n'
        '        if self._open.decode("utf-8", errors="replace").endswith("\\ufffd"):\n'
        '            yield "", False\n'
        "            return\n"
        '        done, self._open = self._open, b""\n'
        "        yield self._text.push(done), False",
        "tokenizer.stream",
    ),
    _fault(
        "tok-stream-shows-special",
        "hides special tokens from a whole text and shows them in a stream",
        "mistralai/mistral-inference#162",
        "tokenizer/tokenizer.py",
        "lambda token_id: self._spelled(token_id, skip_special_tokens), self.decoder, after",
        "lambda token_id: self._spelled(token_id, False), self.decoder, after",
        "tokenizer.stream",
    ),
    _fault(
        "tok-stop-kept-in-the-text",
        "shows the stop string itself",
        "SharpAI/SwiftLM#126",
        "generate/stop.py",
        "return held[: end if self._include else end - found[0].size]",
        "return held[:end]",
        "tokenizer.stop",
    ),
    _fault(
        "tok-stop-first-alone",
        "looks for the first stop string only",
        "vllm-project/vllm#3672",
        "generate/stop.py",
        "for stop in sorted(set(stops), key=lambda s: (-len(s), s))]",
        "for stop in sorted(set(stops), key=lambda s: (-len(s), s))[:1]]",
        "tokenizer.stop",
    ),
    _fault(
        "tok-stop-loses-tail",
        "forgets what was held back as the beginning of a stop string that never came",
        "vllm-project/vllm#3574",
        "generate/stop.py",
        'held, self._held = self._held, ""\n        return held',
        'held, self._held = self._held, ""\n        return ""',
        "tokenizer.stop",
    ),
)
