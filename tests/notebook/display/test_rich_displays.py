"""Figures, frames, images and texts of ranks in the notebook: labelled, folded, text first."""

import pytest

FIRST_CELLS = ["%mesh up --gpus 2", "%%mesh\nimport matplotlib.pyplot as plt"]

pytestmark = pytest.mark.timeout(120)


def pngs(displays: list[dict]) -> list[dict]:
    return [data for data in displays if "image/png" in data]


def test_figures_of_a_cell_appear_with_that_cell(kernel):
    cell = kernel.ok("%%mesh\nplt.plot([0, rank]);", timeout_s=60)
    texts = [data["text/plain"] for data in cell.displays]
    assert sorted(texts[::2]) == ["[0]", "[1]"]
    assert pngs(cell.displays) == cell.displays[1::2]
    assert not pngs(kernel.ok("%%mesh\nplt.get_fignums()").displays)


def test_equal_figures_are_one(kernel):
    cell = kernel.ok(
        "%%mesh\nfigure, axes = plt.subplots(); axes.plot([0, 1]); plt.close(figure)\nfigure",
        timeout_s=60,
    )
    [data] = pngs(cell.displays)
    assert data["text/plain"].startswith("[0-1] <Figure")


def test_a_figure_as_the_last_expression_is_shown_once(kernel):
    cell = kernel.ok(
        "%%mesh 0\nfigure, axes = plt.subplots(); axes.plot([1, 2])\nfigure", timeout_s=60
    )
    assert len(pngs(cell.displays)) <= 2  # as in any kernel: the result, and the open figure
    assert kernel.ok("%%mesh 0\nplt.get_fignums()").displays == [{"text/plain": "[0] []"}]


def test_inline_is_what_ranks_have_and_a_screen_is_refused(kernel):
    kernel.ok("%%mesh\n%matplotlib inline")
    assert "a rank has no screen" in kernel.run("%%mesh\n%matplotlib qt").error
    assert "inline" in kernel.ok("%%mesh\nplt.get_backend()").shown


def test_a_figure_of_a_cell_that_fails_is_closed(kernel):
    kernel.run("%%mesh\nplt.plot([1]); 1 / 0", timeout_s=60)
    assert kernel.ok("%%mesh\nplt.get_fignums()").displays == [{"text/plain": "[0-1] []"}]


def test_frames_are_tables_with_their_label(kernel):
    cell = kernel.ok(
        "%%mesh\nimport pandas\npandas.DataFrame({'rank': [rank], 'name': ['<b>']})", timeout_s=60
    )
    first, second = cell.displays
    assert first["text/plain"].splitlines()[0] == "[0]"
    assert "[1]</div>" in second["text/html"]
    assert "&lt;b&gt;" in second["text/html"]


@pytest.mark.parametrize(
    "code,mime",
    [
        ("HTML('<i>x</i>')", "text/html"),
        ("Markdown('**x**')", "text/markdown"),
        ("Latex('$x$')", "text/latex"),
        ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", "image/svg+xml"),
        ("JSON({'x': 1})", "application/json"),
        ("__import__('PIL.Image').Image.new('RGB', (2, 2))", "image/png"),
    ],
)
def test_equal_displays_are_one_with_a_label(kernel, code, mime):
    names = "from IPython.display import HTML, JSON, SVG, Latex, Markdown"
    cell = kernel.ok(f"%%mesh\n{names}\n{code}")
    [data] = [data for data in cell.displays if mime in data]
    assert "<" in data["text/plain"]
    assert len([d for d in cell.displays if "[0-1]" in d.get("text/html", "")]) == 1
    shown = [d["text/plain"] for d in kernel.ok(f"%%mesh 1\ndisplay({code})").displays]
    assert shown[0].startswith("[1]")
    assert "<" in shown[-1]


def test_capture_takes_displays_that_change(kernel):
    code = "shown = display('first', display_id=True); shown.update('second')"
    cell = kernel.ok(f"%%capture taken\nget_ipython().run_cell_magic('mesh', '', {code!r})")
    assert cell.displays == []
    last = "print(taken.outputs[-1]._repr_mimebundle_()[0]['text/plain'])"
    assert kernel.ok(last).text() == "[0-1] 'second'\n"


def test_what_an_actor_shows_stands_below_the_cell_that_calls_it(kernel):
    kernel.ok(
        "from monarch_nb import Actor, endpoint\n"
        "class Painter(Actor):\n"
        "    @endpoint\n"
        "    def paint(self):\n"
        "        from IPython.display import HTML, display\n"
        "        display(HTML('<u>x</u>'))\n"
        "painters = get_ipython().user_ns['mesh0'].spawn('painters', Painter)"
    )
    kernel.ok("%%mesh\n1")
    cell = kernel.ok("painters.slice(gpus=1).paint.call().get();")
    [data] = cell.displays
    assert data["text/html"].endswith("[1]</div><u>x</u>")
