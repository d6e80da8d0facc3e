"""`%mesh auto on`: which cells go to the ranks and which stay here."""

from collections.abc import Iterator

import pytest

from tests.kernel.client import KernelClient


@pytest.fixture
def auto(fake_kernel: KernelClient) -> Iterator[KernelClient]:
    """A kernel that sends every cell to the ranks."""
    fake_kernel.ok("%mesh auto on")
    yield fake_kernel
    fake_kernel.ok("%mesh auto off")


def test_cells_run_on_the_ranks(auto):
    assert auto.ok("where = 'ranks'\nrank * 0").displays[-1] == {"text/plain": "[0-3] 0"}
    cell = auto.run("\n# first a comment\n1/0")
    assert "line 3, in <module>\n    1/0" in cell.error
    assert auto.ok("%%local\n'where' in dir()").displays == [{"text/plain": "False"}]


def test_the_cell_says_where_it_ran(auto):
    header, result = auto.ok("rank * 0").displays
    assert header["text/plain"] == "on mesh0 [0-3]"
    assert result == {"text/plain": "[0-3] 0"}


def test_local_keeps_lines_where_they_were(auto):
    cell = auto.run("# here\n%%local\nx = 1\n1/0")
    assert "line 4" in cell.error
    assert auto.ok("%%local\nx").displays == [{"text/plain": "1"}]


def test_commands_to_the_mesh_stay_commands(auto):
    assert "mesh0: 4 ranks" in auto.ok("%mesh list").text()
    assert auto.ok("%%mesh 0\n'one'").displays == [{"text/plain": "[0] 'one'"}]
    assert auto.ok("%px 'all'").displays == [{"text/plain": "[0-3] 'all'"}]


def test_commands_are_seen_wherever_ipython_sees_them(auto):
    for code in ("  %mesh list", "found = %mesh list", "a, b = %mesh list"):
        cell = auto.run(code)
        assert "mesh0: 4 ranks" in cell.text(), code
        assert "on mesh0" not in cell.shown
    assert "on mesh0" not in auto.ok("?%mesh").shown
    assert auto.ok("  %%local\n  'here'").displays == [{"text/plain": "'here'"}]


def test_what_no_person_types_stays_here(auto):
    auto.ok("%%local\nfake.calls.clear()")
    auto.ok("1 + 1", silent=True)
    auto.ok("1 + 1", store_history=False)
    auto.ok("%%local\nget_ipython().run_cell('nested = 1')")
    auto.client.is_complete("for x in y:")
    assert auto.ok("%%local\nlen(fake.calls), nested").displays == [{"text/plain": "(0, 1)"}]


def test_it_can_be_for_some_ranks(fake_kernel):
    said = fake_kernel.ok("%mesh auto on gpus=1:3").text()
    assert said.startswith("every cell now is a %%mesh gpus=1:3 cell; %%local keeps one here")
    assert fake_kernel.ok("rank * 0").displays[-1] == {"text/plain": "[1-2] 0"}
    fake_kernel.ok("%mesh auto off")
    assert fake_kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


def test_it_takes_the_options_of_a_cell(fake_kernel):
    fake_kernel.ok("%mesh auto on 0,2 --name mesh0 --layout ranks")
    shown = fake_kernel.ok("rank * 0").displays[-1]["text/plain"]
    assert shown == "[0] 0\n[2] 0"  # a section for each: nothing is folded
    fake_kernel.ok("%mesh auto off")
    told = fake_kernel.run("%mesh auto on --nmae mesh0").error
    assert told.startswith("%%mesh: does not know --nmae; did you mean --name? Type: ")


def test_a_selection_of_no_ranks_is_refused_at_once(fake_kernel):
    assert "outside the mesh" in fake_kernel.run("%mesh auto on gpus=9").error
    assert fake_kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


def test_autopx_turns_it_on_and_off(fake_kernel):
    fake_kernel.ok("%autopx")
    assert fake_kernel.ok("rank * 0").displays[-1] == {"text/plain": "[0-3] 0"}
    fake_kernel.ok("%autopx")
    assert fake_kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


def on(line: object) -> dict[str, object]:
    """What a page says beside a cell that its button sends."""
    return {"monarch": {"mesh": line}}


def test_a_page_can_send_one_cell(fake_kernel):
    header, result = fake_kernel.ok("rank * 0", metadata=on("gpus=1:3")).displays
    assert header["text/plain"] == "on mesh0 [1-2]"
    assert result == {"text/plain": "[1-2] 0"}
    assert fake_kernel.ok("rank * 0", metadata=on("")).displays[-1] == {"text/plain": "[0-3] 0"}
    assert fake_kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


def test_lines_of_a_cell_that_a_page_sent_are_those_of_its_text(fake_kernel):
    cell = fake_kernel.run("# first a comment\nx = 1\n1/0", metadata=on("0"))
    assert "line 3, in <module>\n    1/0" in cell.error


def test_what_a_page_asks_for_a_cell_comes_before_auto(auto):
    assert auto.ok("rank * 0", metadata=on("3")).displays[-1] == {"text/plain": "[3] 0"}
    assert auto.ok("%%local\n1", metadata=on("3")).displays == [{"text/plain": "1"}]


def test_a_cell_magic_of_the_cell_comes_before_what_was_chosen_for_it(fake_kernel):
    source = "%%capture here\nprint('rank' in dir())"
    assert fake_kernel.ok(source, metadata=on("0")).shown == ""
    assert fake_kernel.ok("here.stdout").displays == [{"text/plain": "'False\\n'"}]
    shown = fake_kernel.ok("%%mesh 1\nrank * 0", metadata=on("0")).displays
    assert shown == [{"text/plain": "[1] 0"}]


def test_a_page_that_asks_for_no_ranks_is_told_so(fake_kernel):
    assert "outside the mesh" in fake_kernel.run("1", metadata=on("gpus=9")).error
    told = fake_kernel.run("1", metadata=on("@mesh7 0-1")).error
    assert told == (
        "There is no mesh 'mesh7'. Up: mesh0. Type: %mesh use mesh0, or %%mesh --name mesh0"
    )


def test_what_is_no_line_sends_nothing(fake_kernel):
    for metadata in (on(7), on(None), {"monarch": "0"}, {"monarch": None}):
        assert fake_kernel.ok("1 + 1", metadata=metadata).displays == [{"text/plain": "2"}]


def test_code_that_such_a_cell_runs_stays_here(fake_kernel):
    source = "get_ipython().run_cell('nested = 2')"
    fake_kernel.ok(f"%%local\n{source}", metadata=on("0"))
    assert fake_kernel.ok("nested").displays == [{"text/plain": "2"}]
