"""Completions and help also while a cell runs: on a thread of their own.

ipykernel answers `complete_request` and `inspect_request` on the main thread, which a cell keeps
for as long as it runs. Requests for a subshell have a thread already. Only the thread of the shell
channel may use its socket, so it sends the replies.
"""

import asyncio
import queue
import threading
from typing import Any, Final

REQUESTS: Final = ("complete_request", "inspect_request")


class HelpThread:
    """Answers them one at a time: completers are not made for two."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._requests: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, msg: list[Any]) -> None:
        """Answer this message. The shell channel's thread."""
        self._requests.put(msg)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="monarch-help", daemon=True)
            self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._thread.start()

    def _serve(self) -> None:
        while True:
            msg = self._requests.get()
            try:
                self._answer(msg)
            except Exception:  # as ipykernel does: the next request may be better
                self._kernel.log.exception("Exception in message handler:")

    def _answer(self, msg: list[Any]) -> None:
        kernel = self._kernel
        idents, frames = kernel.session.feed_identities(msg, copy=False)
        request = kernel.session.deserialize(frames, content=True, copy=False)
        handler = kernel.shell_handlers[request["msg_type"]]
        with kernel.busy_beside_the_cell(request):
            asyncio.run(handler(_ReplyStream(kernel), idents, request))


class _ReplyStream:
    """What `session.send` takes for a stream."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def send_multipart(self, frames: list[Any], **options: Any) -> None:
        stream = self._kernel.shell_stream
        loop = self._kernel.shell_channel_thread.io_loop
        loop.add_callback(stream.send_multipart, frames, **options)
