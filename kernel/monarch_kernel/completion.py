"""Completions and help also while a cell runs: on threads of their own.

ipykernel answers `complete_request` and `inspect_request` on the main thread, which a cell keeps
for as long as it runs. Requests for a subshell have a thread already. Each has its own, because a
first completion in code of the controller's may take seconds. Only the thread of the shell channel
may use its socket, so it sends the replies.
"""

import asyncio
import threading
from typing import Any, Final

REQUESTS: Final = ("complete_request", "inspect_request")


def answer(kernel: Any, msg: list[object]) -> None:
    """Answer this message. Returns at once."""
    thread = threading.Thread(target=_answer, args=(kernel, msg), name="monarch-help", daemon=True)
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.start()


def _answer(kernel: Any, msg: list[object]) -> None:
    idents, frames = kernel.session.feed_identities(msg, copy=False)
    request = kernel.session.deserialize(frames, content=True, copy=False)
    handler = kernel.shell_handlers[request["msg_type"]]
    with kernel.busy_beside_the_cell(request):
        try:
            asyncio.run(handler(_ReplyStream(kernel), idents, request))
        except Exception:
            kernel.log.exception("Exception in message handler:")  # ipykernel's words


class _ReplyStream:
    """What `session.send` takes for a stream."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def send_multipart(self, frames: list[object], **options: object) -> None:
        stream = self._kernel.shell_stream
        loop = self._kernel.shell_channel_thread.io_loop
        loop.add_callback(stream.send_multipart, frames, **options)
