"""Displays of ranks (`{"data": bundle, "metadata": ...}`), with labels, folded where they are
equal.

Rule of the file: `text/plain` always carries the label, so that a notebook reads the same without a
browser. Other representations are passed on untouched, below a small header. The label is ours and
still escaped; the bundle is the user's own output, shown as any notebook shows it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from monarch_nb.core.errors.folding import fold_outputs

Content = Mapping[str, Any]

MAX_PARTS = 16

_SVG = "image/svg+xml"
_LATEX = "text/latex"
_IMAGES = (_SVG, "image/png", "image/jpeg", "image/gif", "image/webp")
_HEADER = (
    '<div style="font:0.8em ui-monospace,monospace;color:#7a7a7a;margin:0.2em 0">{label}</div>'
)


def labelled(label: str, content: Content) -> list[Content]:
    """Return what to display for one display of the ranks in the label."""
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


def is_composable(data: Content) -> bool:
    """Tell whether it can be drawn in one display with others: no application of the page's."""
    return not any(mime.startswith("application/") for mime in data)


def is_picture_or_page(data: Content) -> bool:
    """Tell whether `as_html` shows all of it: else it is drawn by a part of the page's own."""
    return is_composable(data) and any(mime in data for mime in ("text/html", *_IMAGES, _LATEX))


def composed(parts: Sequence[tuple[str, Sequence[Content]]]) -> list[Content]:
    """Return displays of several labels' contents; all but the last are shown once."""
    if not parts:
        return [text_content("")]
    if len(parts) == 1 and len(parts[0][1]) == 1:
        label, [content] = parts[0]
        contents = labelled(label, content)
        if len(contents) == 1 or not is_composable(content["data"]):
            return contents
    shown, more = parts[:MAX_PARTS], len(parts) - MAX_PARTS
    note = f"... {more} more" if more > 0 else ""
    plain = "\n".join(filter(None, [*(_part_text(*part) for part in shown), note]))
    if all(set(each["data"]) == {"text/plain"} for _, contents in shown for each in contents):
        return [text_content(plain)]
    page = "".join(_part_html(*part) for part in shown)
    return [text_content(plain, page + (header_html(note) if note else ""))]


def _part_text(label: str, contents: Sequence[Content]) -> str:
    text = "\n".join(str(each["data"].get("text/plain", "")) for each in contents)
    return label_text(label, text) if label else text


def _part_html(label: str, contents: Sequence[Content]) -> str:
    header = header_html(label) if label else ""
    return header + "".join(f"<div>{as_html(each)}</div>" for each in contents)


def as_html(content: Content) -> str:
    """Return what shows it inside a page."""
    data = content["data"]
    if "text/html" in data:
        return str(data["text/html"])
    for mime in _IMAGES:
        if mime in data:
            size = dict(content.get("metadata") or {}).get(mime)
            return _image_html(mime, str(data[mime]), size if isinstance(size, dict) else {})
    if _LATEX in data:
        return html.escape(str(data[_LATEX]))
    return f"<pre>{html.escape(str(data.get('text/plain', '')))}</pre>"


def _image_html(mime: str, text: str, size: Content) -> str:
    encoded = base64.b64encode(text.encode()).decode() if mime == _SVG else "".join(text.split())
    sides = "".join(
        f' {side}="{size[side]}"' for side in ("width", "height") if isinstance(size.get(side), int)
    )
    source = f"data:{mime};base64,{html.escape(encoded)}"
    return f'<img src="{source}"{sides} style="max-width:100%;height:auto">'


def text_content(plain: str, as_html: str = "") -> Content:
    data = {"text/plain": plain, "text/html": as_html} if as_html else {"text/plain": plain}
    return {"data": data, "metadata": {}}


def with_id(content: Content, display_id: str) -> dict[str, Any]:
    """Return the content of a display message; without an id it cannot be changed later."""
    transient = {"display_id": display_id} if display_id else {}
    return {"metadata": {}, **content, "transient": transient}


def plain_text(content: Content) -> str:
    """Return the text of a display that is nothing but text, as a line; else empty."""
    data = content.get("data") or {}
    is_new = content.get("type", "display_data") in {"display_data", "execute_result"}
    return f"{data['text/plain']}\n" if is_new and set(data) == {"text/plain"} else ""


def label_text(label: str, text: str) -> str:
    """Return `[0-3] 2`; several lines begin below their label, so that columns stay."""
    return f"{label}\n{text}" if "\n" in text else f"{label} {text}"


def header_html(label: str) -> str:
    """Return a small grey line, legible on light and dark."""
    return _HEADER.format(label=html.escape(label))


def note_html(text: str) -> str:
    """Return the same, where plain text would stand."""
    return f'<div style="padding-left:8px">{header_html(text)}</div>'


def results(contents: Mapping[int, Content], total: int) -> Iterator[Content]:
    """Return what to display for the last expressions: equal ones once, plain texts together."""
    texts: list[str] = []
    signatures = {rank: signature(content["data"]) for rank, content in contents.items()}
    for group in fold_outputs(signatures, total):
        for content in labelled(group.label, contents[group.ranks[0]]):
            if set(content["data"]) == {"text/plain"}:
                texts.append(str(content["data"]["text/plain"]))
                continue
            if texts:
                yield text_content("\n".join(texts))
            texts = []
            yield content
    if texts:
        yield text_content("\n".join(texts))


def signature(data: object) -> Hashable:
    """Return something that is equal for equal data of a message."""
    if isinstance(data, Mapping):
        return tuple((key, signature(data[key])) for key in sorted(data))
    if isinstance(data, tuple):
        return tuple(map(signature, data))
    return data if isinstance(data, str | int | float | bool | None) else repr(data)
