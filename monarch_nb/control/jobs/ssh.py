"""`SSHJob`: hosts that are reached by the user's own ssh, with all that its configuration says."""

from __future__ import annotations

import contextlib
import functools
import random
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.hosts.replacements import check_spares
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.guard import end_when_over, started_at
from monarch_nb.host.launch import read_last
from monarch_nb.net.hosts.joining import Ticket
from monarch_nb.process.futures.future import Future

_END_S: Final = 6.0
_PORTS: Final = (20_000, 60_000)  # of a host's loopback, through which it may reach this one
_TUNNEL: Final = "127.0.0.1:{}:127.0.0.1:{}"
_NOT_FOUND: Final = 127  # the code of a shell
_SSH_FAILED: Final = 255
_OPTIONS: Final = ("-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=no")


class SSHJob(JoiningJob):
    """Hosts to which the user may log in by ssh. They end with this program.

    `ssh` starts one program on each, which dials this one: directly where the network allows it,
    else through the connection of ssh. The configuration of ssh holds, with its users, jump hosts,
    and shared connections; it must not ask anything (keys, an agent). monarch_nb has to be
    installed there.

    Args:
        python_exe: the Python to use on the hosts.
        ssh_args: more options of ssh.
        monarch_port: accepted, as Monarch's programs give it; here hosts dial this program.
        env: environment variables of the hosts, and so of their ranks.
        min_hosts: so many of each mesh are enough, once the others cannot come: `state` waits for
            that, and its meshes have the hosts that came. None: all have to come.

    Raises:
        LaunchError: from `apply` and `state`, where there is no ssh here.

    Example:
        >>> job = SSHJob(python_exe="/opt/env/bin/python")       # doctest: +SKIP
        >>> job.add_mesh("trainers", ["node1", "node2"])         # doctest: +SKIP
        >>> hosts = job.state(cached_path=None).trainers         # doctest: +SKIP
    """

    def __init__(
        self,
        python_exe: str = "python3",
        ssh_args: Sequence[str] = (),
        monarch_port: int | None = None,
        env: Mapping[str, str] | None = None,
        *,
        min_hosts: int | None = None,
    ) -> None:
        super().__init__(min_hosts)
        del monarch_port
        self._python = python_exe
        self._ssh_args = list(ssh_args)
        self._env = dict(env or {})
        self._meshes: dict[str, list[str]] = {}
        self._job_logins: dict[int, _Login | _FoundLogin] = {}
        self._job_free: list[str] = []  # that were let go

    def add_mesh(self, name: str, hosts: Sequence[str], spares: int = 0) -> None:
        """Add a host mesh: the names of its hosts as ssh knows them.

        Args:
            name: of the mesh.
            hosts: their names.
            spares: so many of the last hosts hold no ranks: they take the place of hosts that are
                lost when a mesh on them is healed. Without one, a lost host is logged in to again.

        Raises:
            ValueError: no host besides the spares, or a name that ssh would take for an option.

        Example:
            >>> job.add_mesh("trainers", ["node1", "node2", "node3"], spares=1)  # doctest: +SKIP
        """
        if not hosts:
            raise ValueError(f"mesh {name!r} has no host")
        check_names(hosts)
        check_spares(spares, len(hosts))
        self._meshes[name] = list(hosts)
        self._spares[name] = spares

    def status(self) -> JobStatus:
        """Return where the job stands now. `reason` tells which hosts are missing, or how the
        first one that did not come has failed."""
        if not self._job_logins:
            count = sum(map(len, self._meshes.values()))
            return JobStatus("ssh", Stage.GONE, 0, count, reason="it has no hosts; job.apply()")
        logins = [self._job_logins[host] for host in self._hosts() if host in self._job_logins]
        if (why := self._why_hopeless()) is not None:
            return self._stands("ssh", Stage.GONE, why)
        if missing := [each.at for each in logins if not each.ready.done()]:
            return self._stands("ssh", Stage.JOINING, f"waiting for {', '.join(missing)}")
        failed = [why for host in self._hosts() if (why := self._why_not_here(host)) is not None]
        lost = len(self._hosts()) - self._count_here()
        words = f"{lost} of its hosts {'has' if lost == 1 else 'have'} been lost" if lost else ""
        return self._stands("ssh", Stage.UP, failed[0] if failed else words)

    def script(self) -> str:
        """Return the command that is run for each host; before that, with PORT for ports."""
        commands = [each.command for each in self._job_logins.values()] or [
            self._command("ssh", at, index, _TUNNEL.format("PORT", "PORT"))
            for names in self._meshes.values()
            for index, at in enumerate(names)
        ]
        lines = map(shlex.join, commands)
        return "".join(
            ["# what lets a host join comes by standard input\n", *(f"{one}\n" for one in lines)]
        )

    def shell_command(self, host: int) -> str:
        return shlex.join(["ssh", *self._ssh_args, self._job_logins[host].at])

    def _command(self, program: str, at: str, index: int, tunnel: str) -> list[str]:
        join = [self._python, "-P", "-m", "monarch_nb.host.join", "--index", str(index)]
        return [program, *_OPTIONS, "-R", tunnel, *self._ssh_args, at, shlex.join(join)]

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("an SSHJob cannot run a client script; a LocalJob can")
        if not self._meshes:
            raise ValueError("this job has no hosts: job.add_mesh('trainers', ['node1', 'node2'])")
        for name, names in self._meshes.items():
            self._furnish(name, self._log_in(names))

    def _log_in(self, names: Sequence[str]) -> list[int]:
        program = shutil.which("ssh")
        if program is None:
            raise LaunchError("there is no ssh here: install the OpenSSH client")
        controller = client()
        hosts, ticket = controller.await_hosts(names)
        for index, (host, at) in enumerate(zip(hosts, names, strict=True)):
            port = random.SystemRandom().randint(*_PORTS)
            here = ticket.addresses[0].rpartition(":")[2]
            command = self._command(program, at, index, _TUNNEL.format(port, here))
            through = [*ticket.addresses, f"tcp://127.0.0.1:{port}"]
            mine = ticket._replace(addresses=through, env=self._env)
            login = _Login(controller, host, at, self._ssh_args, command, mine)
            self._job_logins[host] = login
        return hosts

    def _ask_again(self, lost: int) -> int:
        old = self._job_logins.pop(lost)
        old.end(0.0)  # over a connection that may be dead without knowing
        [host] = self._log_in([old.at])
        return host

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        names = list(places or self._job_free[:count])
        if len(names) != count:
            free = ", ".join(self._job_free) or "none"
            raise LaunchError(
                f"{name}: {count} more hosts are wanted; free, of those that were let go: {free}. "
                "Name them: %mesh scale --add node5,node6"
            )
        check_names(names)
        hosts = self._log_in(names)
        self._job_free = [each for each in self._job_free if each not in names]
        return hosts

    def _keep(self) -> dict[str, Any]:
        logins = {str(host): each.to_json() for host, each in self._job_logins.items()}
        return {"logins": logins, "free": self._job_free}

    def _have_again(self, kept: dict[str, Any]) -> None:
        for host, login in kept["logins"].items():
            number = int(host)
            self._job_logins[number] = _FoundLogin(self._controller.host_ready(number), *login)
        self._job_free = list(kept["free"])

    def _let_go(self, hosts: Sequence[int]) -> None:
        for host in hosts:
            login = self._job_logins.pop(host)
            login.end(_END_S)
            self._job_free.append(login.at)

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        logins = list(self._job_logins.values())
        for login in logins:
            login.give_up()
        shut_down((each.mesh for each in self._job_meshes.values()), deadline)
        for login in logins:
            login.end(max(0.0, deadline - time.monotonic()))
        self._job_logins.clear()
        self._job_free.clear()
        self._job_meshes.clear()

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_logins, self._job_free = {}, []


class _FoundLogin:
    """A run of ssh of another program, by the number of its process and the time of its start; it
    ends with the host."""

    def __init__(
        self, ready: Future[bool], at: str, command: list[str], pid: int, started: int
    ) -> None:
        self.ready = ready
        self.at = at
        self.command = command
        self._process = pid, started

    def to_json(self) -> list[object]:
        return [self.at, self.command, *self._process]

    def give_up(self) -> None:
        """It has joined long ago."""

    def end(self, limit_s: float) -> None:
        """Wait for its end; end it after `limit_s`."""
        end_when_over(*self._process, limit_s)


def check_names(hosts: Sequence[str]) -> None:
    """Raise `ValueError` for one that ssh would take for an option."""
    for host in hosts:
        if not host or host.startswith("-"):
            raise ValueError(f"{host!r} is no name of a host")


class _Login:
    """One run of ssh, for the host of this number. At its end, and when the host is not wanted any
    more, the wait for that host ends: one that has joined by then stays."""

    def __init__(
        self,
        controller: Client,
        host: int,
        at: str,
        ssh_args: Sequence[str],
        command: Sequence[str],
        ticket: Ticket,
    ) -> None:
        self.at = at
        self.command = list(command)
        self.ready = controller.host_ready(host)
        self.ready.add_done_callback(lambda _: None)  # somebody has to want to know
        self._login = [*ssh_args, at]
        self._gone = functools.partial(controller.give_up_host, host)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        begin = functools.partial(self._run, ticket.to_line())
        threading.Thread(target=begin, name="monarch-ssh", daemon=True).start()

    def to_json(self) -> list[object]:
        """Return what a `_FoundLogin` takes."""
        pid = self._process.pid
        return [self.at, self.command, pid, started_at(pid) or 0]

    def give_up(self) -> None:
        self._gone("the job was ended")

    def end(self, limit_s: float) -> None:
        """Wait for its end; end it after `limit_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _run(self, ticket: bytes) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as out:
            out.write(ticket)
        words = read_last(self._process.stderr)
        code = self._process.wait()
        lines = [
            f"ssh ended with code {code}",
            *words.splitlines(),
            advice(self._login, code, words),
        ]
        self._gone("\n".join(filter(None, lines)))


def advice(login: Sequence[str], code: int, words: str) -> str:
    """Return what to do about an ssh with these arguments that has ended; "" where its own words
    say enough."""
    if "No module named" in words:
        return "Install monarch_nb there, or name the Python that has it: SSHJob(python_exe=...)"
    if code == _NOT_FOUND:
        return "Name the Python of that host: SSHJob(python_exe=...)"
    if code == _SSH_FAILED:
        return f"Try it in a terminal: {shlex.join(['ssh', '-o', 'BatchMode=yes', *login, 'true'])}"
    return ""
