"""Faults of what may not be chosen, and of what alone may."""

from __future__ import annotations

from conformance.mutants.mutant import decision

_PROCESSORS = "generate/processors.py"
_ANSWER = "generate/answer.py"
_MIN_TOKENS = """\
    if len(history.answer) < params.min_tokens:
        logits = banned(logits, history.ends)
"""
_FORCED_EOS = """\
    if params.forced_eos_token_id is not None and len(history.answer) + 1 == history.limit:
        logits = forced(logits, params.forced_eos_token_id)
"""
_FORCED_BOS = """\
    if params.forced_bos_token_id is not None and len(history.tokens) == 1:
        logits = forced(logits, params.forced_bos_token_id)
"""
_ORDER = "transformers: the order of generate's logits processors"
_PAULUS = "Paulus et al. 2018, section 2.5"
_BAD_WORDS = "transformers: NoBadWordsLogitsProcessor"
_MIN_NEW = "transformers: MinNewTokensLengthLogitsProcessor"
_FORCED = "transformers: ForcedEOSTokenLogitsProcessor"
_VLLM = "the vLLM documentation: SamplingParams, min_tokens"

BANS = (
    decision(
        "ngram-one-longer",
        "lets n tokens come twice, and n + 1 not",
        _PAULUS,
        _PROCESSORS,
        "no_repeat_ngram(logits, history.tokens, params.no_repeat_ngram_size)",
        "no_repeat_ngram(logits, history.tokens, params.no_repeat_ngram_size + 1)",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "ngram-one-shorter",
        "forbids n - 1 tokens to come twice",
        _PAULUS,
        _PROCESSORS,
        "no_repeat_ngram(logits, history.tokens, params.no_repeat_ngram_size)",
        "no_repeat_ngram(logits, history.tokens, max(params.no_repeat_ngram_size - 1, 1))",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "ngram-of-the-answer",
        "looks for repeats in the answer alone",
        _PAULUS,
        _PROCESSORS,
        "no_repeat_ngram(logits, history.tokens,",
        "no_repeat_ngram(logits, history.answer,",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "ngram-last-place-missed",
        "does not look at the latest place where n tokens can have come",
        _PAULUS,
        _PROCESSORS,
        "for i in range(start) if",
        "for i in range(start - 1) if",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "ngram-latest-only",
        "bans what followed the last time, and not the times before",
        _PAULUS,
        _PROCESSORS,
        "return banned(logits, again)",
        "return banned(logits, list(again)[-1:])",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "ngram-of-short-texts",
        "fails where the text is shorter than n tokens",
        _PAULUS,
        _PROCESSORS,
        "    if start < 0:\n        return logits\n    last = list(tokens[start:])",
        "    assert start >= 0\n    last = list(tokens[start:])",
        "sampling.no_repeat_ngram_size",
    ),
    decision(
        "bad-words-single-only",
        "bans words of one token alone",
        _BAD_WORDS,
        _PROCESSORS,
        "if (others or last not in ends) and list(tokens[len(tokens) - len(others) :]) == others",
        "if not others and last not in ends",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-at-once",
        "bans the last token of a word wherever it comes",
        _BAD_WORDS,
        _PROCESSORS,
        "if (others or last not in ends) and list(tokens[len(tokens) - len(others) :]) == others",
        "if others or last not in ends",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-first-token",
        "bans the first token of every word",
        _BAD_WORDS,
        _PROCESSORS,
        "        last\n        for *others, last in words\n"
        "        if (others or last not in ends) and list(tokens[len(tokens) - len(others) :]) == others",
        "        word[0] for word in words if len(word) > 1 or word[0] not in ends",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-end-token",
        "bans an end token that is listed as a word, and never ends",
        _BAD_WORDS,
        _PROCESSORS,
        "if (others or last not in ends) and list(",
        "if list(",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-ending-in-an-end",
        "lets every word pass whose last token is an end token",
        _BAD_WORDS,
        _PROCESSORS,
        "if (others or last not in ends) and list(",
        "if last not in ends and list(",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-at-the-beginning",
        "compares a word with the first tokens of the text",
        _BAD_WORDS,
        _PROCESSORS,
        "list(tokens[len(tokens) - len(others) :]) == others",
        "list(tokens[: len(others)]) == others",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-of-the-answer",
        "does not see the part of a word that ends the prompt",
        _BAD_WORDS,
        _PROCESSORS,
        "bad_words(logits, history.tokens, params",
        "bad_words(logits, history.answer, params",
        "sampling.bad_words_ids",
    ),
    decision(
        "bad-words-longer-than-the-text",
        "compares as much of a word as there is text",
        _BAD_WORDS,
        _PROCESSORS,
        "list(tokens[len(tokens) - len(others) :]) == others",
        "list(tokens[-len(others) :])[: len(others)] == others[-len(tokens) :]",
        "sampling.bad_words_ids",
    ),
    decision(
        "min-tokens-one-more",
        "lets no answer end at once that has min_tokens",
        _MIN_NEW,
        _PROCESSORS,
        "if len(history.answer) < params.min_tokens:",
        "if params.min_tokens and len(history.answer) <= params.min_tokens:",
        "sampling.min_tokens",
    ),
    decision(
        "min-tokens-one-less",
        "counts the end token",
        _MIN_NEW,
        _PROCESSORS,
        "if len(history.answer) < params.min_tokens:",
        "if len(history.answer) + 1 < params.min_tokens:",
        "sampling.min_tokens",
    ),
    decision(
        "min-tokens-with-prompt",
        "counts the prompt's tokens",
        "transformers: MinLengthLogitsProcessor, which does",
        _PROCESSORS,
        "if len(history.answer) < params.min_tokens:",
        "if len(history.tokens) < params.min_tokens:",
        "sampling.min_tokens",
    ),
    decision(
        "min-tokens-first-end-only",
        "bans one end token of several",
        _MIN_NEW,
        _PROCESSORS,
        "logits = banned(logits, history.ends)",
        "logits = banned(logits, sorted(history.ends)[:1])",
        "sampling.min_tokens",
    ),
    decision(
        "min-tokens-not-for-strings",
        "lets a stop string end an answer that is too short",
        _VLLM,
        _ANSWER,
        "return self._unstoppable < 0",
        "return True",
        "stopping.min_tokens",
    ),
    decision(
        "min-tokens-strings-one-early",
        "lets a stop string end an answer that the last of min_tokens completes",
        _VLLM,
        _ANSWER,
        "return self._unstoppable < 0",
        "return self._unstoppable <= 0",
        "stopping.min_tokens",
    ),
    decision(
        "forced-bos-always",
        "forces the first token of every answer",
        "transformers: ForcedBOSTokenLogitsProcessor",
        _PROCESSORS,
        "is not None and len(history.tokens) == 1:",
        "is not None and not history.answer:",
        "sampling.history",
    ),
    decision(
        "forced-bos-after-the-first",
        "forces the second token of an answer",
        "transformers: ForcedBOSTokenLogitsProcessor",
        _PROCESSORS,
        "is not None and len(history.tokens) == 1:",
        "is not None and len(history.answer) == 1:",
        "sampling.forced_bos_token_id",
    ),
    decision(
        "forced-added",
        "leaves the logit of the forced token, and the others'",
        _FORCED,
        _PROCESSORS,
        "return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(token), 0.0)",
        "return logits.index_fill(0, torch.tensor(token), 0.0)",
        "sampling.forced_bos_token_id sampling.forced_eos_token_id",
    ),
    decision(
        "forced-eos-early",
        "forces the end one token early",
        _FORCED,
        _PROCESSORS,
        "len(history.answer) + 1 == history.limit",
        "len(history.answer) + 2 == history.limit",
        "sampling.forced_eos_token_id",
    ),
    decision(
        "forced-eos-of-all-tokens",
        "counts the prompt among the tokens that an answer may have",
        _FORCED,
        _PROCESSORS,
        "len(history.answer) + 1 == history.limit",
        "len(history.tokens) + 1 == history.limit",
        "sampling.forced_eos_token_id",
    ),
    decision(
        "min-tokens-after-forced-eos",
        "bans the end that it has forced",
        _ORDER,
        _PROCESSORS,
        _MIN_TOKENS + _FORCED_BOS + _FORCED_EOS,
        _FORCED_BOS + _FORCED_EOS + _MIN_TOKENS,
        "sampling.together",
    ),
)
