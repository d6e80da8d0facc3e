"""Who only looks: commands, a terminal, the live view of a page, completion."""

import json
import subprocess
import sys

from tests import support
from tests.notebook.view.browser.test_messages import HELLO, v1
from tests.soak.stage import DEADLINE_S, RANKS, Stage

PARTS = ["strips", "curves", "failures", "actors"]


def commands(stage: Stage) -> None:
    n = stage.dice.randrange(1000)
    stage.ok(f"%%mesh @steady\nlooked = {n}")
    stage.says("%mesh use steady\n%mesh vars looked", str(n))
    stage.ok("%mesh use main")
    stage.ok("%%mesh @main\npass")  # of a rank whose last cell has failed, its state says so
    support.eventually(  # it is at most a tenth of a second old
        lambda: stage.says("%mesh status main", "main: 4 ranks, 4 idle"), DEADLINE_S, "idle ranks"
    )
    stage.says("%mesh list", "main", "steady")
    for each in ("logs --tail 3", "stacks", "errors --history", "collectives", "jobs", "hosts"):
        stage.ok(f"%mesh {each}")


def completes(stage: Stage) -> None:
    n = stage.dice.randrange(1000)
    stage.ok("%%mesh @main\nlongish_name = rank")
    code = "%%mesh @main\nlongish_n"
    reply = _answer(stage, stage.kernel.client.complete(code), "complete_reply")
    assert "longish_name" in reply["matches"], reply
    stage.ok(f"notebook_name = {n}")
    reply = _answer(stage, stage.kernel.client.inspect("notebook_name"), "inspect_reply")
    assert reply["found"], reply


def a_page_looks_on(stage: Stage) -> None:
    kernel, name = stage.kernel, stage.new("page")
    shell, session = kernel.client.shell_channel, kernel.client.session

    def send(kind: str, **content: object) -> None:
        shell.send(session.msg(kind, {"comm_id": name, **content}))

    def came(kind: str) -> list[dict]:
        told = [m["content"]["data"] for m in kernel.others if m["msg_type"] == "comm_msg"
                and m["content"]["comm_id"] == name]  # fmt: skip
        return [each for each in told if each["type"] == kind]

    send("comm_open", target_name="monarch_nb.mesh", data={})
    send("comm_msg", data=v1(HELLO, **{"from": name, "parts": PARTS}))
    kernel.until(lambda: came("state"), DEADLINE_S)
    [main] = [each for each in came("state")[0]["meshes"].items() if each[0] == "main"]
    assert main[1]["sizes"] == [len(RANKS)], main
    stage.ok("%%mesh @main\nimport time; time.sleep(0.3)")
    kernel.until(lambda: came("delta"), DEADLINE_S)
    ask = {"type": "ask", "from": name, "id": 1, "what": "rank", "mesh": "main", "rank": 2}
    send("comm_msg", data=v1(ask))
    answer = kernel.until(lambda: came("answer"), DEADLINE_S)[0]
    assert answer["value"]["rank"] == 2, answer
    if stage.dice.random() < 0.5:
        send("comm_msg", data=v1({"type": "bye", "from": name}))
    send("comm_close", data={})


def from_a_terminal(stage: Stage) -> None:
    [kernel] = _terminal(stage, "status")["kernels"]
    sizes = {each["name"]: each["size"] for each in kernel["meshes"]}
    assert sizes["main"] == 4, sizes
    assert sizes["steady"] == 2, sizes
    word = stage.dice.choice(["vars", "stacks", "logs"])
    assert _terminal(stage, word, "main")["command"] == word


def _terminal(stage: Stage, *words: str) -> dict:
    pid = str(stage.kernel.manager.provisioner.pid)
    command = [sys.executable, "-m", "monarch_nb.control.cli", *words, "--json"]
    command += ["--kernel", pid]  # others of this user may run
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def _answer(stage: Stage, asked: str, kind: str) -> dict:
    kernel = stage.kernel
    kernel.until(lambda: kernel.has_come(kind, asked), DEADLINE_S)
    return next(m["content"] for m in kernel.others if m["parent_header"].get("msg_id") == asked
                and m["msg_type"] == kind)  # fmt: skip


ACTS = {commands: 3, completes: 3, a_page_looks_on: 4, from_a_terminal: 2}
