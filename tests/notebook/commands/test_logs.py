"""What ranks write is kept whole: `%mesh logs`, files that `tail` reads, floods, dead ranks."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from monarch_nb.control.output.log_times import TimedLine, clock_text, times_of
from monarch_nb.control.output.logbook import Logbook, RankLog, index_of, older_half
from monarch_nb.notebook.view.answers import whole_logs
from tests.kernel.client import KernelClient
from tests.support import eventually

FIRST_CELLS = ["%mesh up --gpus 4"]
NOW = 1_700_000_000.25


def texts(lines: list[TimedLine]) -> list[str]:
    return [line.text for line in lines]


def folder_of(kernel: KernelClient) -> Path:
    return Path(kernel.ok("%mesh logs").text().rsplit(": ", 1)[1].strip())


def lines_of(kernel: KernelClient, line: str) -> list[str]:
    """Without the last line, which names the folder."""
    *lines, last = kernel.ok(f"%mesh logs {line}").text().splitlines()
    assert last.startswith("whole logs of mesh0: ")
    return lines


# ----------------------------------------------------------------------------------- the files


def test_text_is_kept_as_it_came(tmp_path):
    book = Logbook(tmp_path / "logs", 1 << 20)
    for rank, tag, text in [(0, 1, "a\nb"), (1, 1, "x\n"), (0, 2, "c\nd\n"), (0, 2, "\ud800\n")]:
        book.write("m/1", rank, 2, tag, text, NOW)
    book.flush()
    assert (tmp_path / "logs/m%2F1.0.log").read_text() == "a\nbc\nd\n\\ud800\n"
    assert texts(book.last("m/1", 0, 2)) == ["d", "\\ud800"]
    assert texts(book.last("m/1", 0, 9, tags=[1])) == ["a", "b"]
    assert texts(book.last("m/1", 0, 9, re.compile("^[cx]$"), [2])) == ["c"]
    assert texts(book.last("m/1", 1, 9)) == ["x"]
    assert book.meshes() == {"m/1": 2}
    book.close()


def test_what_comes_while_the_log_is_written_is_kept(tmp_path):
    book = Logbook(tmp_path, 1 << 20)

    class Slow(str):
        """While it is being written, more comes."""

        __slots__ = ()

        def encode(self, *how: str) -> bytes:
            book.write("m", 0, 1, 1, "second\n", NOW)
            return super().encode(*how)

    book.write("m", 0, 1, 1, Slow("first\n"), NOW)
    eventually(lambda: texts(book.last("m", 0, 9)), what="the first line")
    book.flush()
    assert texts(book.last("m", 0, 9)) == ["first", "second"]
    book.close()


def test_lines_are_found_across_blocks(tmp_path):
    log = RankLog(tmp_path / "log", 1 << 30)
    lines = [f"{number} {'x' * (number % 3000)}" for number in range(500)]
    log.append([(1, NOW, "".join(f"{line}\n" for line in lines).encode())])
    assert texts(log.last(1000)) == lines
    assert texts(log.last(3)) == lines[-3:]
    log.append([(1, NOW, b"no end")])
    assert texts(log.last(2)) == [lines[-1], "no end"]


def test_each_line_has_the_time_at_which_its_end_came(tmp_path):
    book = Logbook(tmp_path, 1 << 20)
    written = [("one\ntw", 1.0004), ("o\n", 1.25), ("three\n", 1.25), ("fo", 3.5), ("ur", 4.0)]
    for number, (text, at) in enumerate(written):
        book.write("m", 0, 1, number, text, at)
    book.flush()
    found = [("one", 1.0), ("two", 1.25), ("three", 1.25), ("four", 4.0)]
    assert [(line.text, line.at) for line in book.last("m", 0, 9)] == found
    assert [(line.text, line.at) for line in book.last("m", 0, 9, tags=[2])] == found[2:3]
    assert times_of(tmp_path / "m.0.log").stat().st_size == 4 * 16  # a mark where the time changes
    times_of(tmp_path / "m.0.log").unlink()
    assert [line.at for line in book.last("m", 0, 9)] == [None] * 4
    book.close()


def test_times_of_what_could_not_be_written_are_dropped(tmp_path):
    path = tmp_path / "log"
    RankLog(path, 1 << 20).append([(1, 1.0, b"kept\n"), (1, 2.0, b"lost\n")])
    os.truncate(path, 5)
    log = RankLog(path, 1 << 20)
    log.append([(1, 3.0, b"new\n")])
    assert log.last(9) == [TimedLine(1.0, "kept"), TimedLine(3.0, "new")]


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_a_whole_log_is_read_in_parts_of_any_size(tmp_path, size):
    log = RankLog(tmp_path / "log", 2_000)
    for number in range(150):
        log.append([(1, float(number), f"line {number}\n".encode())])
    whole = log.last(1_000)
    assert older_half(log.path).exists()
    found, cursor = [], None
    while True:
        lines, cursor = log.part(cursor, size)
        found += lines
        if cursor is None:
            break
    # lines that do not fit come in pieces
    assert "".join(line.text for line in found) == "".join(line.text for line in whole)
    if size > max(len(line.text) for line in whole):
        assert found == whole


def test_whole_logs_are_told_rank_by_rank(tmp_path):
    book = Logbook(tmp_path, 1 << 20)
    for rank in (2, 0):
        book.write("m", rank, 3, 1, f"of {rank}\nand more\n", NOW)
    told, after = [], ""
    while after is not None:
        text, after = whole_logs.part(book, "m", None, after)
        told.append(text)
    at = clock_text(NOW, "%Y-%m-%d %H:%M:%S")
    assert at.endswith(".250")
    assert "".join(told).splitlines() == [
        f"{at} [{rank}] {text}" for rank in (0, 2) for text in (f"of {rank}", "and more")
    ]
    assert whole_logs.part(book, "m", [2], "")[0].count("\n") == 2
    assert whole_logs.part(book, "m", [7], "") == ("", None)
    assert whole_logs.part(book, "gone", None, "") == ("", None)
    with pytest.raises(ValueError, match="no place in a log"):
        whole_logs.part(book, "m", None, "0:x")
    book.close()


def test_a_log_that_is_full_drops_its_oldest_part_and_says_so(tmp_path):
    log = RankLog(tmp_path / "log", 10_000)
    for number in range(2_000):
        log.append([(number // 500, NOW, f"line {number}\n".encode())])
    kept = texts(log.last(10_000))
    assert kept[-1] == "line 1999"
    assert log.path.stat().st_size + older_half(log.path).stat().st_size < 11_000
    said = [line for line in kept if line.startswith("...")]
    assert "what comes before is in log.1" in said[-1]
    assert re.search(r"[0-9]+ bytes before that were removed \(MONARCH_NB_LOG_BYTES\)", said[-1])
    assert texts(log.last(10_000, tags=[3])) == [f"line {number}" for number in range(1500, 2000)]


def test_an_index_that_is_gone_or_just_being_moved_costs_no_error(tmp_path):
    log = RankLog(tmp_path / "log", 1 << 30)
    log.append([(1, NOW, b"a\n")])
    index_of(log.path).unlink()
    assert texts(log.last(5, tags={1})) == []
    assert texts(log.last(5)) == ["a"]


def test_what_cannot_be_written_is_counted(tmp_path, caplog):
    (tmp_path / "logs").write_text("in the way")
    book = Logbook(tmp_path / "logs", 1 << 20)
    book.write("m", 0, 1, 1, "lost\n", NOW)
    book.flush()
    (tmp_path / "logs").unlink()
    book.write("m", 0, 1, 1, "kept\n", NOW)
    book.close()
    assert texts(book.last("m", 0, 9)) == ["... 5 characters could not be written ...", "kept"]
    assert [record.message[:29] for record in caplog.records] == ["logs of ranks are not written"]


# --------------------------------------------------------------------------------- in a kernel


def test_logs_are_labelled_and_folded_as_in_cells(kernel):
    kernel.ok(
        "%%mesh\nimport sys\nfor i in range(30): print('line', i)\nprint(rank, file=sys.stderr)"
    )
    lines = lines_of(kernel, "")
    assert lines[0] == "[0-3] line 11"
    assert lines[-5:] == ["[0-3] line 29", "[0] 0", "[1] 1", "[2] 2", "[3] 3"]
    assert lines_of(kernel, "1-2 --tail 2") == ["[1-2] line 29", "[1] 1", "[2] 2"]
    assert lines_of(kernel, "3 --grep 'line .*7'") == ["[3] line 7", "[3] line 17", "[3] line 27"]


def test_lines_of_a_cell(kernel):
    number = kernel.ok("%%mesh 0\nprint('first')").reply["content"]["execution_count"]
    kernel.ok("%%mesh 0\nprint('second')")
    assert lines_of(kernel, f"--cell {number}") == ["[0] first"]
    assert lines_of(kernel, "0 --tail 2") == ["[0] first", "[0] second"]


def test_lines_with_the_times_at_which_they_came(kernel):
    began = int(time.time())
    cell = "%%mesh\nimport time\nprint('one', rank)\ntime.sleep(1.5)\nprint('two', rank)"
    number = kernel.ok(cell).reply["content"]["execution_count"]
    shown = lines_of(kernel, "0-1 --times --tail 2")
    found = [re.fullmatch(r"\[(\d)\] (\d\d:\d\d:\d\d)\.\d{3} (\w+ \d)", line) for line in shown]
    said = [(one[1], one[3]) for one in found]
    assert said == [("0", "one 0"), ("1", "one 1"), ("0", "two 0"), ("1", "two 1")]
    possible = [time.strftime("%H:%M:%S", time.localtime(began + i)) for i in range(60)]
    first, second = (possible.index(one[2]) for one in found[::2])
    assert second > first
    assert lines_of(kernel, "0 --times --tail 5 --grep two")[-1] == shown[2]
    assert lines_of(kernel, f"0-1 --times --cell {number}") == shown


def test_c_code_and_children_are_kept_too(kernel):
    kernel.ok("%%mesh 0\nimport os; os.system('echo from a child')")
    eventually(lambda: "[0] from a child" in lines_of(kernel, "0"), what="the child's line")


def test_mistakes_are_answered_in_one_line(kernel):
    kernel.ok("%%mesh\nprint('something')")
    for line, told in [
        ("9", "mesh0 has no rank 9; its ranks are 0-3"),
        ("--grep (", "%mesh logs: --grep cannot read '(':"),
        ("--cell 999", "there is no cell In[999] in this session. Type: %mesh logs"),
        ("--name other", "no rank of 'other' has written anything; logs: mesh0"),
    ]:
        cell = kernel.run(f"%mesh logs {line}")
        assert told in cell.error
        assert "Traceback" not in cell.error
    assert lines_of(kernel, "--grep zebra") == ["no line of ranks 0-3 that matches 'zebra'"]


def test_a_flood_is_whole_in_the_log_though_the_notebook_hides_it(kernel):
    cell = kernel.ok("%%mesh 1\nfor i in range(200_000): print('flood', i)")
    assert "lines hidden" in cell.text()
    kernel.ok("%mesh logs 1")  # waits for what is being written
    text = (folder_of(kernel) / "mesh0.1.log").read_text()
    assert re.findall(r"flood (\d+)\n", text) == [str(number) for number in range(200_000)]


def test_a_flood_of_c_code_and_of_children_is_whole_too(kernel):
    cell = kernel.ok(
        "%%mesh 2\nimport os\n"
        "left = b''.join(b'from C %d\\n' % i for i in range(1_200_000))\n"
        "while left: left = left[os.write(1, left[:60_000]):]\n"
        "os.system('seq -f \"a child %.0f\" 0 299999 >&2')"
    )
    assert "lines hidden" in cell.shown  # of the child, too, which writes to stderr
    log = folder_of(kernel) / "mesh0.2.log"
    eventually(lambda: "a child 299999\n" in log.read_text(), what="the last line")
    text = log.read_text()
    assert re.findall(r"^from C (\d+)$", text, re.MULTILINE) == [str(i) for i in range(1_200_000)]
    assert re.findall(r"^a child (\d+)$", text, re.MULTILINE) == [str(i) for i in range(300_000)]


@pytest.mark.slow
@pytest.mark.fault
def test_a_dead_rank_and_a_mesh_that_is_down_can_be_read():
    with KernelClient("monarch") as client:
        assert client.ok("%mesh logs").text() == "ranks have written nothing yet\n"
        client.ok("%mesh up --gpus 2", timeout_s=50)
        client.ok("%%mesh\nprint('last words of', rank)\nimport os; pid = os.getpid()")
        pid = int(client.ok("%%mesh 1\npid").displays[0]["text/plain"].split()[-1])
        os.kill(pid, signal.SIGKILL)
        assert lines_of(client, "1") == ["[1] last words of 1"]
        client.ok("%mesh down")
        assert lines_of(client, "0") == ["[0] last words of 0"]


@pytest.mark.slow
def test_logs_stay_in_a_folder_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_LOG_DIR", str(tmp_path))
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 1", timeout_s=50)
        client.ok("%%mesh\nprint('kept')")
        folder = folder_of(client)
        client.ok("%mesh down")
    assert folder.parent == tmp_path
    assert (folder / "mesh0.0.log").read_text() == "kept\n"
    assert folder.stat().st_mode & 0o777 == 0o700
