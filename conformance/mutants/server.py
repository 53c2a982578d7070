"""Faults of the server, which are no part of a golden's own run: `expected` is the test that must fail."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_OPENAI = "the OpenAI API reference, chat completion chunks"
_LEGACY = "the OpenAI API reference, completions: logprobs"
_EVENTS = "WHATWG HTML, section 9.2.6 (interpreting an event stream)"
_ROLE_ONCE = "vllm-project/vllm#36944"
_USAGE = "ggml-org/llama.cpp#15444"
_INFINITE = "RFC 8259, section 6"
_TIMING = "CWE-208"

_PARTS = "test_stream.py::test_the_parts_of_a_chat_come_in_their_order"
_ECHO = "test_stream.py::test_an_echo_is_said_once_and_offsets_count_from_its_beginning"
_NAMES = "test_stream.py::test_what_cannot_be_had_has_a_number_and_halves_of_characters_have_names"
_CALLS = "test_schema.py::test_calls_are_read_however_the_text_is_cut"


def _server(
    id: str, wrong: str, file: str, old: str, new: str, test: str, source: str = "invented"
) -> Mutant:
    return fault(f"server-{id}", wrong, source, f"server/{file}", old, new, f"../server/{test}")


SERVER: tuple[Mutant, ...] = (
    _server(
        "role-in-every-part",
        "says the role again with every text",
        "chat.py",
        'return {"content": said}',
        'return {"role": "assistant", "content": said}',
        _PARTS,
        _ROLE_ONCE,
    ),
    _server(
        "text-beside-the-reason",
        "says the last text again beside the finish reason",
        "completions.py",
        'yield {**self._choice(place, ""), "finish_reason": piece.finish_reason}',
        'yield {**self._choice(place, piece.text), "finish_reason": piece.finish_reason}',
        _ECHO,
        _OPENAI,
    ),
    _server(
        "prompt-in-every-answer",
        "says what it says of the prompt with each of the answers",
        "answer.py",
        "first=not begun",
        "first=True",
        "test_stream.py::test_the_first_part_of_a_chat_has_what_is_said_of_its_prompt",
    ),
    _server(
        "no-usage",
        "leaves the usage out that a stream was asked for",
        "answer.py",
        "yield self._chunk([], usage=self._usage(answers.done()))",
        "pass",
        _PARTS,
        _USAGE,
    ),
    _server(
        "usage-of-every-answer",
        "counts a prompt once for each of its answers",
        "answer.py",
        "firsts = done[:: self.asked.n]",
        "firsts = done",
        "test_stream.py::test_usage_counts_each_prompt_once",
        _OPENAI,
    ),
    _server(
        "nothing-cached",
        "says that the cache knew nothing of the prompt",
        "responses.py",
        '{"cached_tokens": cached, "cache_write_tokens": 0}',
        '{"cached_tokens": 0, "cache_write_tokens": 0}',
        "test_stream.py::test_a_response_tells_what_the_cache_knew_of_its_prompt",
        "the OpenAI API reference, responses: usage",
    ),
    _server(
        "offsets-of-the-answer",
        "counts the offsets of an answer behind an echo from the answer's beginning",
        "completions.py",
        "said = self._logprobs(done.token_ids, done.logprobs, len(echo))",
        "said = self._logprobs(done.token_ids, done.logprobs)",
        _ECHO,
        _LEGACY,
    ),
    _server(
        "documents-on-the-loop",
        "writes whole answers on the event loop, while nobody else is served",
        "answer.py",
        'await self.frontend.prepared(lambda: self._document(answers), "documents")',
        "self._document(answers)",
        "test_document.py::test_the_loop_goes_on_while_an_answer_is_written",
    ),
    _server(
        "documents-in-one-piece",
        "writes an answer in one piece, while no other thread can run",
        "document.py",
        "DEPTH = 5",
        "DEPTH = 0",
        "test_document.py::test_no_piece_has_more_than_a_tokens_entry",
    ),
    _server(
        "answers-of-nothing",
        "counts a token of an answer that has none",
        "frontend.py",
        "if piece.token_ids:",
        "if True:",
        "test_stream.py::test_a_prompt_is_echoed_without_an_answer",
        _LEGACY,
    ),
    _server(
        "infinite-logprobs",
        "writes an infinite number, which JSON does not have",
        "logprobs.py",
        "return max(logprob, IMPOSSIBLE)",
        "return logprob",
        _NAMES,
        _INFINITE,
    ),
    _server(
        "halves-in-one-name",
        "gives different halves of characters one name, so that one of them is lost",
        "logprobs.py",
        "return self.text(token) if spelled is None else bytes(spelled).decode()",
        "return self.text(token)",
        _NAMES,
        _LEGACY,
    ),
    _server(
        "lines-in-an-event",
        "leaves characters in an event that some readers take for the end of a line",
        "stream.py",
        "json.dumps(document, allow_nan=False)",
        "json.dumps(document, allow_nan=False, ensure_ascii=False)",
        "test_stream.py::test_any_text_is_one_event_for_every_reader_of_lines",
        _EVENTS,
    ),
    _server(
        "silent-end",
        "ends a stream that failed as if nothing had happened",
        "stream.py",
        "await body(self._failure(error))",
        "pass",
        "test_stream.py::test_what_fails_later_is_an_event",
        "ModelTC/LightLLM#1262",
    ),
    _server(
        "gone-and-served",
        "goes on for a client that has left, which holds its blocks",
        "exchange.py",
        "exchange.stop(None)",
        "pass",
        "test_lifecycle.py::test_who_leaves_is_served_no_longer",
    ),
    _server(
        "a-key-that-begins-alike",
        "lets in whoever has the beginning of the key",
        "security.py",
        "hmac.compare_digest(given.strip(), key)",
        "key.startswith(given.strip())",
        "test_errors.py::test_a_key_is_the_whole_key_and_no_other",
        _TIMING,
    ),
    _server(
        "everywhere-is-here",
        "takes any name for this machine's own, and asks for no key there",
        "security.py",
        'return host == "localhost"',
        "return True",
        "test_cli_serve.py::test_what_makes_no_sense_is_refused_before_a_model_is_read",
    ),
    _server(
        "names-that-begin-alike",
        "takes a website for this machine that begins as its name does",
        "security.py",
        'return host == "localhost"',
        'return host.startswith("localhost")',
        "test_errors.py::test_without_a_key_websites_are_not_answered_in_this_machines_name",
        "CWE-350",
    ),
    _server(
        "queue-of-requests",
        "counts requests in the queue, however many answers they ask for",
        "frontend.py",
        "with self._places(n * params.answers):",
        "with self._places(1):",
        "test_lifecycle.py::test_the_queue_has_an_end",
    ),
    _server(
        "let-in-at-the-end",
        "lets requests in while the server stops",
        "exchange.py",
        'if self.in_flight.closed is not None and scope["path"] not in ALWAYS:',
        "if False:",
        "test_lifecycle.py::test_while_the_server_stops_nobody_is_let_in",
    ),
    _server(
        "ready-at-once",
        "takes requests while steps are being compiled, which they then wait for",
        "serve.py",
        "self._frontend.in_flight.closed = starting",
        "pass",
        "test_lifecycle.py::test_until_it_has_warmed_up_a_server_lives_and_is_not_ready",
    ),
    _server(
        "faults-are-told",
        "tells the client what went wrong inside, with whatever that quotes",
        "exchange.py",
        'return ApiError(500, "the server failed on this request; other requests are not affected")',
        "return ApiError(500, str(fault))",
        "test_errors.py::test_nobody_is_told_where_the_models_files_are",
        "CWE-209",
    ),
    _server(
        "the-size-it-says",
        "believes what a body says of its size",
        "exchange.py",
        "    if n > limit:",
        "    if int(length) > limit:",
        "test_bad_requests.py::test_a_body_that_does_not_say_its_size_is_counted",
        "CWE-770",
    ),
    _server(
        "calls-cut-in-two",
        "takes the beginning of a tag for text, so that a call that comes in pieces is none",
        "tools.py",
        r'\s*+(?:{_BEGINNINGS})?\Z")',
        r'\s*+\Z")',
        _CALLS,
    ),
    _server(
        "connections-in-work-are-closed",
        "takes who waits for an answer for one who never asks",
        "connection.py",
        'return None if in_work else ("head after", cycle)',
        'return ("head after", cycle)',
        "test_connection.py::test_who_waits_for_an_answer_gets_it_and_may_ask_again",
    ),
    _server(
        "halves-are-taken",
        "reads halves of characters, which no answer can be written with",
        "body.py",
        r'if suspicious or "\\u" in text:',
        "if suspicious:",
        "test_schema.py::test_what_is_no_json_is_refused_by_the_place",
        "RFC 8259, section 8.2",
    ),
)
