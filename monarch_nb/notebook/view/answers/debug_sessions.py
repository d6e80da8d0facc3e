"""Debuggers' prompts in views: conversations with stopped ranks, one for each terminal of a page.

Rules of the file: lines come by requests and are only put into a queue; a thread for each
conversation speaks with the ranks and pushes what they say, while the terminal is open. It ends
when the view leaves, when its channel is closed, or when the page has been silent for long; what
was opened for it goes on then, ranks at breakpoints stay as they are.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from monarch_nb.control.debug.prompt import NOBODY, Conversation
from monarch_nb.control.debug.sessions import Key, Stop
from monarch_nb.notebook.view.browser.protocol import VERSION, Args, Ask, Do
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, Json, plain

if TYPE_CHECKING:
    from monarch_nb.control.api import Client, ProcMesh
    from monarch_nb.notebook.view.answers.actions import Parts

WORDS: Final = ("debug", "line", "leave", "words")
"""What these are asked and told."""
LIMIT_S: Final = 10.0
LATE: Final = f"the debugger has not answered within {LIMIT_S:g} s"
NAME: Final = "the mesh view"
GONE: Final = "this prompt is closed; open it again"
MAX_SESSIONS: Final = 16
MAX_SAID: Final = 100_000
MAX_WORDS: Final = 100
SILENCE_S: Final = 150.0
"""Browsers let hidden pages speak once a minute."""
LOOK_S: Final = 0.1

Name = tuple[int, str, int]
"""A channel, its client, and the number that the client gives."""
Tell = Callable[[int, Json], None]


class DebugSessions:
    """Those of a session. `tell(channel, message)` may be called by any thread."""

    def __init__(self, parts: Parts, tell: Tell) -> None:
        self._parts = parts
        self._tell = tell
        self._all: dict[Name, DebugSession] = {}
        self._lock = threading.Lock()

    def perform(self, channel: int, wish: Ask | Do) -> Json:
        """Do what a view wants of a debugger. Raises `ValueError` with a sentence."""
        name = channel, wish.client, wish.args["session"]
        if wish.what == "debug":
            self._open(name, wish.args)
            return {"said": ""}
        debugged = self._all.get(name)
        if wish.what == "leave":
            if debugged is not None:
                debugged.close()
            return {"said": ""}
        if debugged is None or debugged.is_closed:
            raise ValueError(GONE)
        if wish.what == "words":
            return {"words": debugged.complete(wish.args["line"])}
        debugged.type(wish.args["line"])
        return {"said": ""}

    def keep_alive(self, channel: int, client: str) -> None:
        for (of_channel, of_client, _), debugged in list(self._all.items()):
            if (of_channel, of_client) == (channel, client):
                debugged.keep_alive()

    def close(self, channel: int | None = None) -> None:
        """End those of a channel, or all."""
        for (of_channel, *_), debugged in list(self._all.items()):
            if channel in (None, of_channel):
                debugged.close()

    def _open(self, name: Name, args: Args) -> None:
        parts, rank = self._parts, args["rank"]
        client, mesh = parts.link.attach(), parts.control.find(args["mesh"])
        if client is None or mesh is None or rank not in mesh.ranks:
            raise ValueError(f"{plain(args['mesh'], MAX_WHAT)} has no rank {rank} any more")
        keys = _failed(parts, mesh, rank) if args["failed"] else ()
        debugged = DebugSession(client, partial(self._say, name), partial(_is_of, mesh.name), keys)
        with self._lock:
            if name in self._all or len(self._all) >= MAX_SESSIONS:
                debugged.let_go()
                raise ValueError(f"{MAX_SESSIONS} prompts are open already; close some")
            self._all[name] = debugged
        if not debugged.begin(rank, lambda: self._all.pop(name, None)):
            if parts.debugging.look_at(mesh.name, rank):
                raise ValueError(f"rank {rank} is stopped by JupyterLab's debugger, which shows it")
            raise ValueError(f"rank {rank} is not stopped at a prompt of pdb. {debugged.who()}")

    def _say(self, name: Name, text: str, prompt: str, is_over: bool) -> None:
        channel, client, number = name
        said = {"text": plain(text, MAX_SAID), "prompt": plain(prompt, MAX_WHAT), "over": is_over}
        head = {"v": VERSION, "type": "session", "to": client, "session": number}
        self._tell(channel, {**head, **said})


def _failed(parts: Parts, mesh: ProcMesh, rank: int) -> tuple[Key, ...]:
    keys = parts.control.open_failed(parts.control.processes(mesh, [rank]))
    if not keys:
        raise ValueError(
            f"rank {rank} keeps no failure: its last cell or call has ended well, or %mesh clear "
            "has let go of it"
        )
    return tuple(keys)


def _is_of(mesh: str, stop: Stop) -> bool:
    return stop.mesh == mesh


class DebugSession:
    """One terminal. `say(text, prompt, is_over)` shows what there is to see and what to ask.

    `keys`: the frames of failures that were opened for it, of which alone it speaks then.
    """

    def __init__(
        self,
        client: Client,
        say: Callable[[str, str, bool], None],
        wants: Callable[[Stop], bool],
        keys: tuple[Key, ...] = (),
    ) -> None:
        self._heard_s = time.monotonic()
        self._stops = client.debugging
        self._say = say
        self._keys = keys
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._prompt = ""
        is_mine = (lambda stop: stop.key in keys) if keys else wants
        self._conversation = Conversation(client.debugging, self._write, is_mine, NAME)

    @property
    def is_closed(self) -> bool:
        """Nobody is there any more."""
        return self._conversation.is_closed

    def begin(self, rank: int, ended: Callable[[], object]) -> bool:
        """Speak to this rank in a thread, then call `ended`. False, and ended, if it is not
        stopped.
        """
        if not self._conversation.choose(rank):
            self.let_go()
            ended()
            return False
        run = partial(self._run, ended)
        thread = threading.Thread(target=run, name="monarch-live-debug", daemon=True)
        vars(thread)["pydev_do_not_trace"] = True
        thread.start()
        return True

    def keep_alive(self) -> None:
        self._heard_s = time.monotonic()

    def who(self) -> str:
        """Return who is stopped, in a sentence."""
        return self._conversation.who() if self._conversation.stops() else NOBODY

    def type(self, line: str) -> None:
        """Put a line for the prompt. Returns at once."""
        self._lines.put(line)

    def complete(self, line: str) -> list[str]:
        """Return what its last word may become."""
        return [plain(word, MAX_WHAT) for word in self._conversation.complete(line)[:MAX_WORDS]]

    def close(self) -> None:
        """End its thread soon, whatever it waits for."""
        self._conversation.close()

    def let_go(self) -> None:
        """Give the prompts to others, close failed frames that were opened for it."""
        self._conversation.leave()
        for key in self._keys:
            self._stops.send(key, "continue")

    # the thread

    def _run(self, ended: Callable[[], object]) -> None:
        try:
            while not self._is_over():
                self._conversation.announce()
                self._ask()
                with contextlib.suppress(queue.Empty):
                    self._conversation.do(self._lines.get(timeout=LOOK_S))
                    self._prompt = ""  # it is asked again
        finally:
            self.let_go()
            ended()
            self.close()
            self._say("", "", True)

    def _is_over(self) -> bool:
        if time.monotonic() - self._heard_s > SILENCE_S:
            self.close()
        is_done = bool(self._keys) and not self._conversation.stops()
        return self._conversation.is_closed or self._conversation.is_over or is_done

    def _write(self, text: str) -> None:
        self._say(text, self._prompt, False)

    def _ask(self) -> None:
        # Say whose prompt it is, if that has changed; none while nobody is stopped
        prompt = self._conversation.prompt if self._conversation.stops() else "(running) "
        if prompt != self._prompt:
            self._prompt = prompt
            self._say("", prompt, False)
