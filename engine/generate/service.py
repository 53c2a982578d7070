"""One path for everybody who waits for an answer: callers share a scheduler, and each has a mailbox.

Nothing runs in the background. Whoever needs a piece and finds no mail has a step taken, and what the
step says goes to all of them: generators that are read in turns, threads, and coroutines, which wait
for a step in a thread.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from engine.errors import LockstepError
from engine.generate.answer import Piece
from engine.generate.request import Request
from engine.generate.scheduler import Scheduler


class Mailbox:
    """What was said of one caller's requests and not taken yet; `awaited` of their answers go on."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.awaited = sum(len(request.answers) for request in requests)
        self._said: deque[Piece | Exception] = deque()

    def __len__(self) -> int:
        return len(self._said)

    def post(self, said: Piece | Exception) -> None:
        self._said.append(said)

    def take(self) -> Piece:
        """The next piece; raises what ended a request instead of one."""
        said = self._said.popleft()
        if isinstance(said, Exception):
            raise said
        self.awaited -= said.finish_reason is not None
        return said


class Service:
    """Any number of callers at one scheduler, in threads and event loops.

    Requests are served from the first time that a piece is asked for until the generator is exhausted,
    closed, collected, or its task cancelled: then they give back what they hold, at once, or as soon as
    the step that is being taken is done.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._mail: dict[Request, Mailbox] = {}
        # Who came, with a mailbox, and who left, without; whoever has the lock lets them in and out.
        self._door: deque[tuple[Request, Mailbox | None]] = deque()
        self._lock = Lock()
        # The step that coroutines of a loop wait for together, in one thread.
        self._steps: dict[AbstractEventLoop, asyncio.Task[None]] = {}

    def pieces(self, requests: Sequence[Request]) -> Generator[Piece]:
        """The pieces of all of them as they come; raises the first error of one of them."""
        with self._attended(requests) as mail:
            while mail.awaited:
                if not mail:
                    self._step(mail)
                else:
                    yield mail.take()

    async def apieces(self, requests: Sequence[Request]) -> AsyncGenerator[Piece]:
        """As `pieces`; the event loop goes on while a step is taken."""
        with self._attended(requests) as mail:
            while mail.awaited:
                if not mail:
                    await self._stepped(mail)
                else:
                    yield mail.take()

    async def _stepped(self, mail: Mailbox) -> None:
        """Waits for the step that is being taken for coroutines of this loop, or has one taken.

        All of them go on when it is done: who has mail does not wait for the steps of those who have none.
        """
        loop = asyncio.get_running_loop()
        step = self._steps.get(loop)
        if step is not None:
            await asyncio.wait([step])
            return
        step = self._steps[loop] = loop.create_task(asyncio.to_thread(self._step, mail))
        step.add_done_callback(lambda _: self._steps.pop(loop))
        await asyncio.shield(step)  # it goes on for the others where we are cancelled

    @contextmanager
    def _attended(self, requests: Sequence[Request]) -> Iterator[Mailbox]:
        mail = Mailbox(requests)
        self._door.extend((request, mail) for request in requests)
        try:
            yield mail
        finally:
            self._door.extend((request, None) for request in requests)
            self._attend_if_free()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step is taken meanwhile."""
        try:
            with self._lock:
                yield
        finally:
            self._attend_if_free()

    def _step(self, mail: Mailbox) -> None:
        """One step for everybody, unless there is mail by the time that it could be taken."""
        try:
            with self._lock:
                self._attend()
                if not mail:
                    self._deliver()
        finally:
            self._attend_if_free()

    def _deliver(self) -> None:
        try:
            for request, said in self.scheduler.step():
                self._mail[request].post(said)
        except BaseException as error:
            self._give_up(error)
            if not isinstance(error, Exception):
                raise

    def _give_up(self, error: BaseException) -> None:
        """After a step that failed: what those who took part hold is worth nothing.

        A fault is theirs; an interruption is the affair of whoever was interrupted.
        """
        ours = error if isinstance(error, Exception) else LockstepError("the step was interrupted")
        for request in list(self.scheduler.running or self.scheduler.waiting):
            self.scheduler.cancel(request)
            self._mail[request].post(ours)

    def _attend(self) -> None:
        while self._door:
            request, mail = self._door.popleft()
            if mail is None:
                self.scheduler.cancel(request)
                for answer in request.answers:
                    self._mail.pop(answer, None)
            else:
                self._mail.update(dict.fromkeys(request.answers, mail))
                self.scheduler.submit(request)

    def _attend_if_free(self) -> None:
        """Lets in and out who stands at the door, or leaves that to the one who has the lock.

        Never waits: a generator may be collected at any time, also by the thread that takes a step.
        """
        while self._door and self._lock.acquire(blocking=False):
            try:
                self._attend()
            finally:
                self._lock.release()
