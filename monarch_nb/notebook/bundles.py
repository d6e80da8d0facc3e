"""Mime bundles of ranks, with their labels, folded where they are equal.

Rule of the file: `text/plain` always carries the label, so that a notebook reads the same without a browser; other
representations are passed on untouched and get a small header of their own, or above. A label is
ours and still escaped; a bundle is the user's own output, shown as any notebook shows it.
"""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from monarch_nb.core.folding import fold_outputs

Bundle = Mapping[str, Any]

_HEADER = (
    '<div style="font:0.8em ui-monospace,monospace;color:#7a7a7a;margin:0.2em 0">{label}</div>'
)


def labelled(label: str, data: Bundle) -> list[dict[str, Any]]:
    """The bundles to display for one bundle of the ranks in the label."""
    if not label:
        return [dict(data)]
    shown = dict(data)
    if "text/plain" in data:
        shown["text/plain"] = label_text(label, str(data["text/plain"]))
    if "text/html" in data:
        shown["text/html"] = header_html(label) + str(data["text/html"])
        return [shown]
    if set(data) <= {"text/plain"}:
        return [shown]
    return [{"text/plain": label, "text/html": header_html(label)}, shown]


def label_text(label: str, text: str) -> str:
    """`[0-3] 2`; a text of several lines begins below its label, so that its columns stay."""
    return f"{label}\n{text}" if "\n" in text else f"{label} {text}"


def header_html(label: str) -> str:
    """A small grey line, legible on light and dark."""
    return _HEADER.format(label=html.escape(label))


def results(bundles: Mapping[int, Bundle], total: int) -> Iterator[dict[str, Any]]:
    """What to display for the last expressions of ranks: equal ones once, plain texts together."""
    texts: list[str] = []
    for group in fold_outputs({rank: signature(data) for rank, data in bundles.items()}, total):
        for data in labelled(group.label, bundles[group.ranks[0]]):
            if set(data) == {"text/plain"}:
                texts.append(str(data["text/plain"]))
                continue
            if texts:
                yield {"text/plain": "\n".join(texts)}
            texts = []
            yield data
    if texts:
        yield {"text/plain": "\n".join(texts)}


def signature(data: Any) -> Hashable:
    """Equal for equal bundles."""
    if isinstance(data, Mapping):
        return tuple((key, signature(data[key])) for key in sorted(data))
    return data if isinstance(data, str | int | float | bool | None) else repr(data)
