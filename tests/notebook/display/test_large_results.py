"""Results and displays that are too long for a page: cut, and it says how to get the whole."""

import pytest

FIRST_CELLS = ["%mesh up --gpus 2", "%%mesh\nimport pandas"]

pytestmark = pytest.mark.timeout(120)


def size(cell):
    return sum(len(str(message["content"])) for message in cell.messages)


def test_a_long_text_is_cut_in_the_middle_and_can_be_had_whole(kernel):
    cell = kernel.ok("%%mesh\n'begin' + 'x' * 10_000_000 + f'end{rank}'")
    [text] = [data["text/plain"] for data in cell.displays]
    assert size(cell) < 1_000_000
    assert "[0]\n'begin" in text
    assert "end1'" in text
    assert "9,800,011 of 10,000,011 characters are not shown." in text
    assert "v = %mesh get _" in text
    assert kernel.ok("v = %mesh get _\nprint([len(one) for one in v.values()])").text() == (
        "[10000009, 10000009]\n"
    )


def test_a_giant_table_is_cut_at_a_row(kernel):
    kernel.ok("%%mesh\npandas.set_option('display.max_rows', None)")
    cell = kernel.ok(
        "%%mesh\npandas.DataFrame({'a': range(50_000), 'b': range(50_000)})", timeout_s=90
    )
    [data] = [data for data in cell.displays if "<table" in data.get("text/html", "")]
    assert size(cell) < 1_000_000
    page = data["text/html"]
    assert page.count("<tr") == page.count("</tr>") > 1_000
    assert page.count("<table") == page.count("</table>") == 1
    assert page.count("<tbody>") == page.count("</tbody>") == 1
    assert "%mesh get _" in page[page.index("</table>") :]


def test_a_long_display_is_cut_too(kernel):
    cell = kernel.ok("%%mesh 0\ndisplay('x' * 10_000_000)\ndisplay({'text/html': 'y'}, raw=True)")
    assert size(cell) < 1_000_000
    assert "v = %mesh get x" in cell.shown
    assert cell.displays[-1]["text/html"].endswith("y")


def test_what_fits_is_whole(kernel):
    assert "x" * 100_000 in kernel.ok("%%mesh 0\n'x' * 100_000").shown
