"""Faults of sharing an engine, of log-probabilities' places in a text, and of several answers to a prompt.

They show in how requests come and go and in what is said of them, not in a golden: `expected` is the test that
must fail, as file::test below tests/engine/.
"""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_ORCA = "Yu et al. 2022, section 3"
_LEFT_BEHIND = "ggml-org/llama.cpp#27148"
_PYTHON = "the Python documentation, asyncio: Developing with asyncio"
_OFFSETS = "togethercomputer/openapi#5"
_LISTED = "vllm-project/vllm#47815"
_OPENAI = "the OpenAI API reference, n, best_of and usage"


def _service(id: str, wrong: str, source: str, old: str, new: str, test: str) -> Mutant:
    return fault(f"service-{id}", wrong, source, "generate/service.py", old, new, test)


def _said(id: str, wrong: str, source: str, file: str, old: str, new: str, test: str) -> Mutant:
    return fault(f"said-{id}", wrong, source, f"generate/{file}.py", old, new, test)


_SHARING = (
    fault(
        "paged-known-overwritten-in-need",
        "writes over known tokens without forgetting them, where no block is left for a copy",
        "ovg-project/kvcached#362",
        "cache/paged.py",
        "else:\n                self.prefixes.forget(block)",
        "else:\n                pass",
        "test_prefixes.py::test_what_is_overwritten_in_need_is_known_no_more",
    ),
    _service(
        "room-kept",
        "lets a stream that is given up keep its place",
        _LEFT_BEHIND,
        "self._door.extend((request, None) for request in requests)",
        "pass",
        "service/test_coroutines.py::test_an_async_stream_left_in_the_middle_gives_its_room_back",
    ),
    _service(
        "taken-out-in-the-midst",
        "takes a stream that is collected out of the pass that is being computed, in the same thread",
        "the Python documentation, threading: RLock objects",
        "self._lock = Lock()",
        'self._lock = __import__("threading").RLock()',
        "service/test_streams.py::test_a_stream_collected_in_the_midst_of_a_pass_is_taken_out_after_it",
    ),
    _service(
        "left-at-the-door",
        "forgets who left while a step was taken until the next one",
        _LEFT_BEHIND,
        "        finally:\n            self._attend_if_free()\n\n    def _deliver",
        "        finally:\n            pass\n\n    def _deliver",
        "service/test_coroutines.py::test_a_task_cancelled_while_its_pass_is_computed_is_taken_out_after_it",
    ),
    _service(
        "loop-blocked",
        "computes a pass in the event loop",
        _PYTHON,
        "loop.create_task(asyncio.to_thread(self._step, mail))",
        "loop.create_task(asyncio.sleep(0, self._step(mail)))",
        "service/test_coroutines.py::test_the_event_loop_goes_on_while_a_pass_is_computed",
    ),
    _service(
        "one-step-for-all-loops",
        "has coroutines of all event loops wait for one task",
        _PYTHON,
        "step = self._steps.get(loop)",
        "step = next(iter(self._steps.values()), None)",
        "service/test_coroutines.py::test_event_loops_of_two_threads_at_once",
    ),
    _service(
        "heard-late",
        "lets others have a step taken before who waited for one looks into the mailbox",
        _ORCA,
        "        if step is not None:\n            await asyncio.wait([step])\n            return\n",
        "        if step is not None:\n"
        "            while step := self._steps.get(loop):\n"
        "                await asyncio.wait([step])\n"
        "            return\n",
        "service/test_coroutines.py::test_a_token_is_heard_before_the_step_after_the_next",
    ),
    _service(
        "errors-for-all",
        "tells everybody of one request's error",
        _ORCA,
        "self._mail[request].post(said)",
        "[mail.post(said) for mail in (self._mail.values() "
        "if isinstance(said, Exception) else [self._mail[request]])]",
        "service/test_failures.py::test_an_error_of_one_request_is_its_own_caller_s",
    ),
    _service(
        "failed-pass-for-one",
        "tells only the first of those that took part in a step that it failed",
        _ORCA,
        "for request in list(self.scheduler.running or self.scheduler.waiting):",
        "for request in list(self.scheduler.running or self.scheduler.waiting)[:1]:",
        "service/test_failures.py::test_a_pass_that_fails_ends_those_that_took_part_and_the_next_ones_are_served",
    ),
    fault(
        "service-scheduler-for-each",
        "gives each call a scheduler of its own for the cache that they share",
        _ORCA,
        "generate/engine.py",
        "service = self._shared if own is None",
        "service = self._serving(self.pages) if own is None",
        "service/test_streams.py::test_streams_that_are_read_in_turns_say_what_each_says_alone",
    ),
    fault(
        "service-branches-kept",
        "cancels the first of several answers and lets the others go on",
        _LEFT_BEHIND,
        "generate/scheduler.py",
        "        for one in request.answers:\n            self._forget(one)",
        "        self._forget(request)",
        "service/test_streams.py::test_however_streams_are_read_and_given_up_the_others_go_on",
    ),
    fault(
        "service-waiting-kept",
        "cancels who runs and not who waits",
        _LEFT_BEHIND,
        "generate/scheduler.py",
        "        elif request in self.waiting:\n            self.waiting.remove(request)\n",
        "",
        "service/test_coroutines.py::test_tasks_cancelled_at_random_moments_leave_nothing_and_disturb_nobody",
    ),
)

_PLACES = (
    _said(
        "offset-of-what-is-out",
        "counts the characters that are out, without those that are held back for a stop string",
        _OFFSETS,
        "answer",
        "        self.decoded += len(text)\n        self._unstoppable -= 1\n"
        "        return self._matcher.push(text, self._armed)",
        "        self._unstoppable -= 1\n        text = self._matcher.push(text, self._armed)\n"
        "        self.decoded += len(text)\n        return text",
        "test_logprobs.py::test_entries_of_an_answer_stand_where_its_text_does",
    ),
    _said(
        "offset-in-tokens",
        "counts tokens for characters",
        _OFFSETS,
        "request",
        "(token_logprob(asked, token, params.logprobs, self._answer.decoded),)",
        "(token_logprob(asked, token, params.logprobs, len(self.pieces)),)",
        "test_logprobs.py::test_tokens_of_a_character_stand_where_it_begins",
    ),
    _said(
        "offset-behind-the-token",
        "gives a token of the prompt the place where its text ends",
        _OFFSETS,
        "prompts",
        "return [0, *ends[:-1]]",
        "return ends",
        "test_logprobs.py::test_ids_of_a_prompt_stand_where_their_text_does",
    ),
    _said(
        "offset-without-the-space",
        "lets a word begin behind its space, where the tokenizer leaves it out of offsets",
        _OFFSETS,
        "prompts",
        "end if added else min(start, end)",
        "end if added else start",
        "test_logprobs.py::test_tokens_of_a_text_stand_at_their_first_byte",
    ),
    _said(
        "banned-listed",
        "lists tokens that cannot be chosen among the likeliest",
        _LISTED,
        "logprobs",
        "((logprobs >= least) & (logprobs > -torch.inf))",
        "(logprobs >= least)",
        "test_logprobs.py::test_processed_log_probabilities_list_what_can_be_chosen_and_nothing_else",
    ),
    _said(
        "first-token-foretold",
        "begins the prompt's log-probabilities with those of its second token",
        _LISTED,
        "request",
        "self.prompt_logprobs: list[TokenLogprob | None] = [None]",
        "self.prompt_logprobs: list[TokenLogprob | None] = []",
        "test_logprobs.py::test_tokens_of_a_character_stand_where_it_begins",
    ),
)

_SEVERAL = (
    _said(
        "best-by-sum",
        "ranks answers by the sum of their log-probabilities, which prefers short ones",
        _OPENAI,
        "request",
        "return self._logprobs / length if beams is None",
        "return self._logprobs if beams is None",
        "test_stopping.py::test_answers_of_different_lengths_are_ranked_by_their_mean",
    ),
    _said(
        "worst-of",
        "gives the least likely of the answers",
        _OPENAI,
        "request",
        "key=lambda answer: answer.score, reverse=True",
        "key=lambda answer: answer.score",
        "test_stopping.py::test_the_likeliest_of_the_answers_are_given",
    ),
    _said(
        "a-token-of-none",
        "gives a token where none was asked for",
        _OPENAI,
        "request",
        "if self.limit == 0:",
        "if False:",
        "test_logprobs.py::test_a_prompt_has_log_probabilities_without_an_answer",
    ),
    _said(
        "usage-of-the-given",
        "counts the answers that are given, not those that were made",
        _OPENAI,
        "request",
        "for answer in answers for piece",
        "for answer in answers[: request.n] for piece",
        "test_stopping.py::test_the_likeliest_of_the_answers_are_given",
    ),
    _said(
        "one-seed-for-all",
        "draws all answers to a prompt with one seed",
        _OPENAI,
        "params",
        "(self.seed + index) % 2**63",
        "self.seed",
        "test_stopping.py::test_the_best_cannot_be_streamed_but_all_can",
    ),
    _said(
        "held-stop-forgotten",
        "starts anew after a stop string that came before min_tokens, whose end may begin another",
        "vllm-project/vllm#3672",
        "stop",
        "            for stop in found:\n                stop.go_on()",
        "            for stop in found:\n                stop.seen = 0",
        "test_stopping.py::test_a_stop_string_may_begin_within_one_that_was_too_early",
    ),
    _said(
        "stop-armed-late",
        "lets the first token after min_tokens end no answer by a stop string",
        "engine/generate/params.py: min_tokens",
        "answer",
        "self._unstoppable = min_tokens  #",
        "self._unstoppable = min_tokens and min_tokens + 1  #",
        "test_stopping.py::test_an_answer_ends_where_the_rule_says",
    ),
)

SERVING: tuple[Mutant, ...] = (*_SHARING, *_PLACES, *_SEVERAL)
