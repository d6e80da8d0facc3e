"""stdout and stderr of the kernel, without needless waiting.

ipykernel flushes both streams three times for every cell, and each flush waits until the IOPub
thread has been there and back, also when there is nothing to flush. That was 2 of the 4 ms of an
empty cell.
"""

from typing import Any

from ipykernel.iostream import OutStream

_OutStream: Any = OutStream  # its types are incomplete


class PromptOutStream(_OutStream):  # type: ignore[misc]
    """An OutStream whose `flush` waits for text only."""

    def flush(self) -> None:
        """Wait until what was written has been sent. Without text there is no order to keep."""
        if self._buffers or self.echo is not None:
            super().flush()
