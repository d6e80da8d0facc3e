"""`monarch-nb debug`: the debugger of a running controller's ranks, in this terminal.

Rule of the file: it knows no more of ranks than what it is told (see `server.py`); it never
starts a client.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from monarch_nb.host.rundir import Owner, owners
from monarch_nb.net import wire

WORDS_S: Final = 1.0

Ask = Callable[[str], str]


class Gone(Exception):
    """The controller has closed the conversation."""


class Line:
    def __init__(self, owner: Owner) -> None:
        self._stream = wire.connect_debug_server(owner.path)
        self.questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._words: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._is_open = True

    def listen(self, say: Callable[[str], object]) -> None:
        """Read what comes, in a thread, until the end: None among the questions."""
        threading.Thread(target=self._listen, args=(say,), daemon=True).start()

    def _listen(self, say: Callable[[str], object]) -> None:
        with self._stream.makefile("rb") as lines:
            for line in _until_broken(lines):
                said = json.loads(line)
                if "words" in said:
                    self._words.put(said["words"])
                if "say" in said:
                    say(said["say"])
                if said.get("ask") is not None:
                    self.questions.put(said["ask"])
        self._is_open = False
        self.questions.put(None)

    def send(self, line: str) -> None:
        self._write({"line": line})

    def words(self, line: str) -> list[str]:
        self._write({"complete": line})
        try:
            return self._words.get(timeout=WORDS_S)
        except queue.Empty:
            return []

    def _write(self, said: dict[str, object]) -> None:
        if not self._is_open:
            raise Gone
        try:
            self._stream.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            raise Gone from None

    def close(self) -> None:
        """Leave; ranks stay as they are."""
        self._stream.close()


def _until_broken(lines: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from lines
    except OSError:
        return


def run(pid: int | None) -> int:
    """Attach to a controller of this user. Returns the exit code."""
    found = owners()
    chosen = [owner for owner in found if pid is None or owner.pid == pid]
    if len(chosen) != 1:
        sys.stderr.write(_which(found, pid))
        return 2
    try:
        line = Line(chosen[0])
    except OSError as error:
        sys.stderr.write(f"process {chosen[0].pid} does not answer: {error.strerror}\n")
        return 1
    try:
        _converse(line)
    except KeyboardInterrupt:  # while no rank is stopped
        return 0
    finally:
        line.close()
    return 0


def _converse(line: Line) -> None:
    line.listen(_say)
    ask = _asker(line)
    while (question := line.questions.get()) is not None:
        while not line.questions.empty():  # who was meant has changed meanwhile
            question = line.questions.get()
        if question is None:
            return
        try:
            line.send(ask(question))
        except KeyboardInterrupt:
            line.send("")
        except (EOFError, Gone):
            return


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _asker(line: Line) -> Ask:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _plain
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.patch_stdout import patch_stdout

    class Words(Completer):
        def get_completions(self, document: Any, _event: object) -> Iterator[Completion]:
            typed = document.text_before_cursor
            word = typed.rpartition(" ")[2]
            for each in line.words(typed):
                yield Completion(each, start_position=-_common(word, each))

    session: Any = PromptSession(completer=Words(), complete_while_typing=False)

    def ask(prompt: str) -> str:
        with patch_stdout():
            return str(session.prompt(prompt))

    return ask


def _common(typed: str, word: str) -> int:
    return next((size for size in range(len(typed), 0, -1) if word.startswith(typed[-size:])), 0)


def _plain(prompt: str) -> str:
    sys.stdout.write(prompt)
    sys.stdout.flush()
    if not (line := sys.stdin.readline()):
        raise EOFError
    return line.rstrip("\n")


def _which(found: list[Owner], pid: int | None) -> str:
    if not found:
        return "no controller of yours runs on this machine\n"
    known = "".join(f"  {owner.pid}  {owner.command}\n" for owner in found)
    if pid is not None:
        return f"process {pid} is no controller of yours; these are:\n{known}"
    return f"several controllers run; choose one: monarch-nb debug --pid {found[0].pid}\n{known}"
