"""Displays that a page can take: text and tables that are too long are cut, and say so.

Rule of the file: pure. Pictures and what a page draws by itself pass; a browser takes seconds for
megabytes of text, and Jupyter's server drops them.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

MAX_CHARS: Final = 400_000  # of all ranks together
MIN_CHARS: Final = 2_000  # of one rank
MAX_OTHER: Final = 10_000_000  # characters of a page that is no table
TAIL: Final = 0.2  # of what is kept is the end

OF_RESULT: Final = "The whole of it: v = %mesh get _"
OF_DISPLAY: Final = "To have the whole: keep it in a variable x, then v = %mesh get x"


def capped(data: Mapping[str, Any], ranks: int, hint: str) -> Mapping[str, Any]:
    """Return a mime bundle that is short enough where each of so many ranks shows one."""
    limit = max(MAX_CHARS // max(ranks, 1), MIN_CHARS)
    if not any(isinstance(value, str) and len(value) > limit for value in data.values()):
        return data
    return {mime: _capped(str(mime), value, limit, hint) for mime, value in data.items()}


def _capped(mime: str, value: object, limit: int, hint: str) -> object:
    if not isinstance(value, str) or not mime.startswith("text/") or len(value) <= limit:
        return value
    if mime == "text/plain":
        return _text(value, limit, hint)
    if mime != "text/html" or "<table" not in value[:limit]:
        return value if len(value) <= MAX_OTHER else _said(len(value), 0, hint)
    return _table(value, limit, hint)


def _text(text: str, limit: int, hint: str) -> str:
    tail = int(limit * TAIL)
    head = limit - tail
    return f"{text[:head]}\n... {_said(len(text), limit, hint)} ...\n{text[-tail:]}"


def _table(page: str, limit: int, hint: str) -> str:
    # The rows that fit, and the end of the table, so that nothing is left open
    end = page.rfind("</tr>", 0, limit)
    told = f"<p>... {html.escape(_said(len(page), max(end, 0), hint))} ...</p>"
    if end < 0:
        return told
    close = page.rfind("</table>")
    rest = page[close:] if close > end and len(page) - close < MIN_CHARS else "</table>"
    return f"{page[: end + len('</tr>')]}</tbody>{rest}{told}"


def _said(size: int, shown: int, hint: str) -> str:
    return f"{size - shown:,} of {size:,} characters are not shown. {hint}"
