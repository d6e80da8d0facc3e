"""Displays of ranks (`{"data": bundle, "metadata": ...}`), with labels, folded where they are
equal.

Rule of the file: `text/plain` always carries the label, so that a notebook reads the same without a
browser. Other representations are passed on untouched, below a small header. The label is ours and
still escaped; the bundle is the user's own output, shown as any notebook shows it.
"""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from monarch_nb.core.folding import fold_outputs

Content = Mapping[str, Any]

_HEADER = (
    '<div style="font:0.8em ui-monospace,monospace;color:#7a7a7a;margin:0.2em 0">{label}</div>'
)


def labelled(label: str, content: Content) -> list[Content]:
    """What to display for one display of the ranks in the label."""
    data = dict(content["data"])
    if not label or not data:
        return [content]
    if "text/plain" in data:
        data["text/plain"] = label_text(label, str(data["text/plain"]))
    shown = {**content, "data": data}
    if "text/html" in data:
        data["text/html"] = header_html(label) + str(data["text/html"])
    elif set(data) != {"text/plain"}:
        return [text_content(label, header_html(label)), shown]
    return [shown]


def text_content(plain: str, as_html: str = "") -> Content:
    """A display of text."""
    data = {"text/plain": plain, "text/html": as_html} if as_html else {"text/plain": plain}
    return {"data": data, "metadata": {}}


def plain_text(content: Content) -> str:
    """The text of a display that is nothing but text, as a line; else empty."""
    data = content.get("data") or {}
    is_new = content.get("type", "display_data") in {"display_data", "execute_result"}
    return f"{data['text/plain']}\n" if is_new and set(data) == {"text/plain"} else ""


def label_text(label: str, text: str) -> str:
    """`[0-3] 2`; a text of several lines begins below its label, so that its columns stay."""
    return f"{label}\n{text}" if "\n" in text else f"{label} {text}"


def header_html(label: str) -> str:
    """A small grey line, legible on light and dark."""
    return _HEADER.format(label=html.escape(label))


def note_html(text: str) -> str:
    """The same, where plain text would stand."""
    return f'<div style="padding-left:8px">{header_html(text)}</div>'


def results(contents: Mapping[int, Content], total: int) -> Iterator[Content]:
    """What to display for the last expressions: equal ones once, plain texts together."""
    texts: list[str] = []
    signatures = {rank: signature(content["data"]) for rank, content in contents.items()}
    for group in fold_outputs(signatures, total):
        for content in labelled(group.label, contents[group.ranks[0]]):
            if set(content["data"]) == {"text/plain"}:
                texts.append(content["data"]["text/plain"])
                continue
            if texts:
                yield text_content("\n".join(texts))
            texts = []
            yield content
    if texts:
        yield text_content("\n".join(texts))


def signature(data: Any) -> Hashable:
    """Equal for equal data of a message."""
    if isinstance(data, Mapping):
        return tuple((key, signature(data[key])) for key in sorted(data))
    if isinstance(data, tuple):
        return tuple(map(signature, data))
    return data if isinstance(data, str | int | float | bool | None) else repr(data)
