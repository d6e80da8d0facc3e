"""The front end of the widget as one ES module and one style sheet, out of the files in `front`.

Rule of the file: those modules are written for this. They import only one another, by path and at
the left margin; they export declarations, and `widget.js` exports a default. No name stands at the
top of two of them, for here they share one scope. The whole is deflated, for it travels with every
widget, with every page that is loaded again, and into notebooks that keep the state of widgets.
"""

from __future__ import annotations

import base64
import functools
import posixpath
import re
import zlib
from pathlib import Path
from typing import Final

FRONT: Final = Path(__file__).parents[1] / "front"
ENTRY: Final = "widget.js"
STYLE: Final = "mesh.css"

_UNPACKED: Final = """\
const packed = Uint8Array.from(atob("{packed}"), (sign) => sign.charCodeAt(0));
const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
const source = new Blob([await new Response(plain).text()], {{ type: "text/javascript" }});
const address = URL.createObjectURL(source);
const {{ default: widget }} = await import(address);
URL.revokeObjectURL(address);
export default widget;
"""

_IMPORT = re.compile(
    r"(?m)^import\s*(?:\{[^}]*\}\s*from\s*)?[\"'](\.{1,2}/[\w./-]+)[\"'];?[ \t]*\n"
)
_EXPORT = re.compile(r"(?m)^export (?=(?:async )?(?:function|class|const|let)\b)")
_EXPORT_LIST = re.compile(r"(?m)^export \{[^}]*\};?[ \t]*\n")
_COMMENT = re.compile(r"(?m)^[ \t]*(?:/\*(?:(?!\*/)[\s\S])*\*/[ \t]*\n|//.*\n)")
_EMPTY = re.compile(r"\n{2,}")


@functools.cache
def script() -> str:
    """Return the module: `export default { render }`."""
    return packed(joined(FRONT))


@functools.cache
def style() -> str:
    return (FRONT / STYLE).read_text(encoding="utf-8")


def joined(folder: Path, entry: str = ENTRY) -> str:
    """Return all modules that `entry` needs, each after those that it needs, as one."""
    found: dict[str, str] = {}
    _collect(folder, entry, found, ())
    return "\n".join(found.values())


def packed(source: str) -> str:
    """Return a module that unpacks this one and exports its default."""
    deflated = zlib.compress(source.encode(), 9)
    return _UNPACKED.format(packed=base64.b64encode(deflated).decode())


def _collect(folder: Path, name: str, found: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other: {' -> '.join((*above, name))}")
    if name in found:
        return
    source = _COMMENT.sub("", (folder / name).read_text(encoding="utf-8"))
    for needed in _IMPORT.findall(source):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), needed))
        _collect(folder, path, found, (*above, name))
    found[name] = _bare(source)


def _bare(source: str) -> str:
    # A module's own code, without what ties it to others
    for pattern in (_IMPORT, _EXPORT_LIST, _EXPORT):
        source = pattern.sub("", source)
    return _EMPTY.sub("\n", source).strip() + "\n"
