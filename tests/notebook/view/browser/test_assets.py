"""The front end as one module and one style sheet, as the widget sends them."""

import base64
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from monarch_nb.notebook.view.browser import assets
from tests import support
from tests.browser.lab import CHROMIUM_FLAGS

NEEDS_FRONT = pytest.mark.skipif(
    not (assets.FRONT / assets.ENTRY).exists(), reason="the front end is not here"
)
DECLARED = re.compile(r"^(?:async )?(?:function\*?|class|const|let|var) ([\w$]+)", re.MULTILINE)
MAX_BYTES = 50 * 1024

FILES = {
    "widget.js": (
        "// @ts-check\n"
        "import {\n  Model,\n  twice,\n} from './model.js';\n"
        'import { base } from "./base.js";\n'
        "import './side.js';\n"
        "\n"
        "export default { render: () => twice(base) + new Model().url };\n"
    ),
    "model.js": (
        "/**\n * import { nothing } from './nothing.js';\n */\n"
        "import { base } from './base.js';\n"
        "\n\n"
        "/** Twice. */\n"
        "export function twice(x) {\n"
        "  // a comment\n"
        "  return 2 * x + base - base; /* stays */\n"
        "}\n"
        "export class Model {\n  url = 'a//b';\n}\n"
        "export async function later() {}\n"
    ),
    "base.js": "const base = 21;\nlet hidden = 1;\nexport { base };\n",
    "side.js": "globalThis.side = 1;\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def node(*arguments: str | Path) -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not here")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_are_joined_after_those_they_need(folder):
    assert assets.joined(folder) == (
        "const base = 21;\nlet hidden = 1;\n"
        "\n"
        "function twice(x) {\n  return 2 * x + base - base; /* stays */\n}\n"
        "class Model {\n  url = 'a//b';\n}\n"
        "async function later() {}\n"
        "\n"
        "globalThis.side = 1;\n"
        "\n"
        "export default { render: () => twice(base) + new Model().url };\n"
    )


def test_the_joined_module_does_what_they_do(folder, tmp_path):
    (tmp_path / "joined.mjs").write_text(assets.joined(folder))
    (tmp_path / "main.mjs").write_text(
        "import whole from './joined.mjs';\nconsole.log(whole.render());\n"
    )
    assert node(tmp_path / "main.mjs") == "42a//b\n"


def test_modules_that_need_each_other_are_refused(folder):
    (folder / "base.js").write_text("import { twice } from './model.js';\n")
    with pytest.raises(ValueError, match=r"widget\.js -> model\.js -> base\.js -> model\.js"):
        assets.joined(folder)


def test_a_page_gets_it_packed():
    source = "export default { render: () => '\u00e9' };\n" * 100
    module = assets.packed(source)
    assert len(module) < len(source) / 4
    inside = re.search(r'atob\("([^"]*)"\)', module)[1]
    assert zlib.decompress(base64.b64decode(inside)).decode() == source


@pytest.mark.browser
def test_a_browser_unpacks_it(folder):
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=support.chromium(), headless=True, args=list(CHROMIUM_FLAGS)
        )
        page = chromium.new_page()
        render = """async (text) => {
            const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
            return (await import(address)).default.render();
        }"""
        assert page.evaluate(render, assets.packed(assets.joined(folder))) == "42a//b"
        chromium.close()


@NEEDS_FRONT
def test_the_front_end_is_one_module_of_its_own(tmp_path):
    script = assets.joined(assets.FRONT)
    assert not re.search(r"^\s*import\b|\bimport\s*\(|import\.meta", script, re.MULTILINE)
    assert re.findall(r"^export\b.*", script, re.MULTILINE) == [
        next(line for line in script.splitlines() if line.startswith("export default"))
    ]
    (tmp_path / "whole.mjs").write_text(script)
    node("--check", tmp_path / "whole.mjs")


@NEEDS_FRONT
def test_no_name_stands_in_two_modules():
    names = DECLARED.findall(assets.joined(assets.FRONT))
    twice = {name for name in names if names.count(name) > 1}
    assert not twice


@NEEDS_FRONT
def test_the_front_end_is_small_enough_to_come_with_each_widget():
    size = len(assets.script().encode())
    assert size <= MAX_BYTES, f"{size / 1024:.1f} KiB"
    assert len(assets.style().encode()) <= MAX_BYTES / 4


@NEEDS_FRONT
def test_classes_of_the_style_sheet_are_ours():
    found = re.findall(r"\.(-?[A-Za-z_][\w-]*)", re.sub(r"url\([^)]*\)", "", assets.style()))
    pages = ("jp-", "vscode-")
    assert [name for name in found if not name.startswith(("mnb-", *pages))] == []
    assert "http" not in assets.style()


@NEEDS_FRONT
def test_it_is_read_once():
    assert assets.script() is assets.script()
    assert assets.style() is assets.style()
