"""What is sabotaged: one line of code for each promise, and who has to notice."""

from typing import Final, NamedTuple


class Sabotage(NamedTuple):
    """`old`, which stands once in `file`, becomes `new`; one of `tests`, as pytest names them, is
    to fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: str


SABOTAGES: Final = (
    # processes end with their owner
    Sabotage(
        "no signal at the death of the parent",
        "monarch_nb/host/guard.py",
        "_prctl(_PR_SET_PDEATHSIG, number)",
        "_prctl(_PR_SET_PDEATHSIG, 0)",
        "tests/host/test_faults.py tests/faults/test_owner.py",
    ),
    Sabotage(
        "no orphan is adopted",
        "monarch_nb/host/guard.py",
        "_prctl(_PR_SET_CHILD_SUBREAPER, 1)",
        "_prctl(_PR_SET_CHILD_SUBREAPER, 0)",
        "tests/host/test_faults.py tests/host/test_started.py",
    ),
    Sabotage(
        "who has the number of a process that has gone is ended in its place",
        "monarch_nb/host/guard.py",
        "        if started_at(pid) == started:\n",
        "        if True:\n",
        "tests/host/test_guard.py",
    ),
    # other users of the machine are strangers
    Sabotage(
        "others may enter a private folder",
        "monarch_nb/net/private.py",
        "or info.st_uid != os.getuid() or info.st_mode & 0o077:",
        "or info.st_uid != os.getuid():",
        "tests/security/test_run_dir.py",
    ),
    Sabotage(
        "others may replace what is in a folder",
        "monarch_nb/net/private.py",
        "is_safe = is_sticky or not info.st_mode & _OTHERS_MAY_WRITE",
        "is_safe = True",
        "tests/security/test_shared_folders.py",
    ),
    Sabotage(
        "code is imported from where others may write",
        "monarch_nb/net/private.py",
        "or not is_mine or info.st_mode & _OTHERS_MAY_WRITE:",
        "or not is_mine:",
        "tests/security/test_shared_folders.py",
    ),
    Sabotage(
        "a key that others can read is used",
        "monarch_nb/net/private.py",
        "if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:",
        "if info.st_uid != os.getuid():",
        "tests/security/test_run_dir.py",
    ),
    Sabotage(
        "a key is written over what is there",
        "monarch_nb/net/private.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC\n    with",
        "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC\n    with",
        "tests/security/test_run_dir.py",
    ),
    Sabotage(
        "who is not on the allow-list is let in",
        "monarch_nb/net/hosts/joining.py",
        "return domain == wire.ZAP_DOMAIN and key in self._keys",
        "return domain == wire.ZAP_DOMAIN",
        "tests/net/test_joining.py tests/security/test_strangers.py",
    ),
    Sabotage(
        "who knows a session's name need not know its secret",
        "monarch_nb/net/hosts/handshake.py",
        ").derive(key)",
        ").derive(b'')",
        "tests/net/test_session.py",
    ),
    Sabotage(
        "another user's connection is welcome",
        "monarch_nb/control/local_server.py",
        "if _user_of(stream) == self._user:",
        "if True:",
        "tests/security/test_local_server.py",
    ),
    Sabotage(
        "any key opens a kept mesh",
        "monarch_nb/host/agent/keeping.py",
        "if not self._key or not hmac.compare_digest(self._key, key):",
        "if not self._key:",
        "tests/host/test_keeping.py",
    ),
    # who drives a mesh
    Sabotage(
        "two controllers drive the same ranks",
        "monarch_nb/host/agent/keeping.py",
        "if not self.is_alone and not wanted.fence:",
        "if False:",
        "tests/host/test_keeping.py",
    ),
    # nothing is lost, nothing comes twice
    Sabotage(
        "a record that comes again is taken twice",
        "monarch_nb/net/hosts/session.py",
        "if number != self.received + 1:",
        "if number > self.received + 1:",
        "tests/net/test_session.py tests/net/test_tree_simulated.py",
    ),
    Sabotage(
        "nothing is sent again over a new connection",
        "monarch_nb/net/hosts/session.py",
        "        self.acknowledge(received)\n        self._sent = 0\n",
        "        self.acknowledge(received)\n",
        "tests/net/test_session.py",
    ),
    Sabotage(
        "a record is acknowledged that was never sent",
        "monarch_nb/net/hosts/session.py",
        "if number > self._last:",
        "if False:",
        "tests/net/test_session.py",
    ),
    Sabotage(
        "a cast that comes again is spread twice",
        "monarch_nb/net/hosts/tree/node.py",
        "if not self._is_new(cast.numbers[0], len(cast.piece)):",
        "if not self._is_new(cast.numbers[0], len(cast.piece)) and False:",
        "tests/net/test_tree_simulated.py",
    ),
    Sabotage(
        "a torn batch is taken for whole",
        "monarch_nb/core/wire/frames.py",
        "if at + sum(lengths) != len(frame) or (count and min(lengths) < HEADER.size):",
        "if count and min(lengths) < HEADER.size:",
        "tests/core/wire tests/net/test_streams.py",
    ),
    Sabotage(
        "a number in a message may be a truth value",
        "monarch_nb/core/wire/messages/codec.py",
        "    if type(value) is not int:\n",
        "    if not isinstance(value, int):\n",
        "tests/core/test_messages.py",
    ),
    Sabotage(
        "memory that was lent does not come back",
        "monarch_nb/process/process.py",
        "        if owner == self.id:\n            self.payloads.taken_back(segment, owner)",
        "        if owner == self.id:\n            pass",
        "tests/process tests/data tests/faults/test_values.py",
    ),
    # a host that says nothing
    Sabotage(
        "no sign of life is sent",
        "monarch_nb/net/hosts/link.py",
        "if now - self._said_at >= self._timing.pulse_s:",
        "if False:",
        "tests/net/test_tree_simulated.py tests/net/test_outages.py",
    ),
    Sabotage(
        "a silent host is not told of",
        "monarch_nb/net/hosts/link.py",
        "if quiet_s > self._timing.silent_s and not self._is_silent:",
        "if False:",
        "tests/net/test_pulse.py tests/net/test_outages.py",
    ),
    Sabotage(
        "a host that is not heard is never given up",
        "monarch_nb/net/hosts/link.py",
        "if quiet_s > self._timing.outage_s:",
        "if False:",
        "tests/net/test_outages.py tests/net/test_tree_simulated.py",
    ),
    # waits end
    Sabotage(
        "nobody is told of a death",
        "monarch_nb/process/supervision/supervision.py",
        "        waiters = self.proc.end_waits(*new.values())\n",
        "        waiters = []\n",
        "tests/actors/test_deaths.py",
    ),
    Sabotage(
        "actors of an owner that has died go on",
        "monarch_nb/process/supervision/supervision.py",
        "            self._stop_owned_by(process)\n",
        "            pass\n",
        "tests/actors tests/process/test_supervision.py",
    ),
    # interrupts
    Sabotage(
        "an interrupt that comes during a send is forgotten",
        "monarch_nb/worker/cells/interrupts.py",
        "self._missed = self.is_open or self._is_expecting",
        "self._missed = False",
        "tests/worker/cells/test_interrupts.py",
    ),
    Sabotage(
        "a signal just before a call that blocks wakes nobody",
        "monarch_nb/process/interrupts.py",
        "        signal.pthread_kill(main, WAKEUP)\n",
        "",
        "tests/worker/cells/test_interrupts.py",
    ),
    # meshes live as long as somebody has them
    Sabotage(
        "a mesh that is resized is nobody's for a while",
        "monarch_nb/meshes/healing/healing.py",
        "            ended.get()\n        return mesh\n",
        "            del mesh\n            ended.get()\n        return new.view()\n",
        "tests/control/jobs/test_scaling.py",
    ),
    # files that come from others
    Sabotage(
        "a file of a workspace may leave it",
        "monarch_nb/core/wire/manifest.py",
        r'if "\0" in path or not {"", ".", ".."}.isdisjoint(parts) or parts[0] == OWN:',
        r'if "\0" in path or parts[0] == OWN:',
        "tests/services/workspace/test_receiver.py",
    ),
    Sabotage(
        "a link of a workspace may leave it",
        "monarch_nb/core/wire/manifest.py",
        'or ".." in parts[ups:] or ups > depth:',
        'or ".." in parts[ups:]:',
        "tests/services/workspace/test_receiver.py",
    ),
    Sabotage(
        "a file is written through a link of somebody's",
        "monarch_nb/services/workspace/receiver.py",
        "        if not self._is_real(path.parent):\n            raise OSError",
        "        if False:\n            raise OSError",
        "tests/services/workspace/test_receiver.py",
    ),
    Sabotage(
        "half a file is taken for whole",
        "monarch_nb/services/workspace/receiver.py",
        "if size != entry.size:",
        "if False:",
        "tests/services/workspace/test_receiver.py",
    ),
    Sabotage(
        "another key of a known host is taken",
        "monarch_nb/net/known_hosts.py",
        "if before is not None and before.key != key.encode():",
        "if False:",
        "tests/security/test_known_hosts.py",
    ),
    # bytes of others
    Sabotage(
        "a record may be as long as it says",
        "monarch_nb/net/hosts/records.py",
        "if not _TAG_BYTES <= size <= BODY_BYTES + _TAG_BYTES:",
        "if not _TAG_BYTES <= size:",
        "tests/net/test_session.py",
    ),
    Sabotage(
        "a piece may end behind its record",
        "monarch_nb/net/hosts/pieces.py",
        "    if end > len(data):\n",
        "    if False:\n",
        "tests/net/test_pieces.py",
    ),
    Sabotage(
        "a part may be of any size",
        "monarch_nb/net/hosts/pieces.py",
        "or not 0 < part.reply <= PIECE_BYTES:",
        "or not 0 < part.reply:",
        "tests/net/test_pieces.py",
    ),
    Sabotage(
        "who greets and says no more is waited for without end",
        "monarch_nb/net/hosts/listener.py",
        "            if now > each.until:\n",
        "            if False:\n",
        "tests/net/test_broken_peers.py tests/security/test_strangers.py tests/net/test_floods.py",
    ),
    Sabotage(
        "any number of strangers is waited for",
        "monarch_nb/net/hosts/listener.py",
        "while len(self._arrivals) >= _MOST:",
        "while False:",
        "tests/net/test_broken_peers.py tests/security/test_strangers.py tests/net/test_floods.py",
    ),
    # decisions
    Sabotage(
        "a rank is restarted for ever",
        "monarch_nb/meshes/restarting/intensity.py",
        "if len(recent) >= self.wanted.max:",
        "if False:",
        "tests/meshes/test_intensity.py",
    ),
    Sabotage(
        "a failure that is told again is another one",
        "monarch_nb/control/output/failures.py",
        "if number <= self.up_to or number in self._beyond:",
        "if number <= self.up_to:",
        "tests/control/output",
    ),
    Sabotage(
        "a rank and who keeps its snapshot are on one host",
        "monarch_nb/core/elastic/keepers.py",
        "_beside(sorted(parts)) if len(by_host) == 1 else",
        "_beside(sorted(parts)) if by_host else",
        "tests/core/elastic/test_keepers.py",
    ),
    Sabotage(
        "ranks of which nobody has heard are out of step",
        "monarch_nb/core/hangs/agreement.py",
        "        if not told.keys() >= set(members):\n",
        "        if False:\n",
        "tests/core/hangs/test_agreement.py",
    ),
    Sabotage(
        "a rank waits in vain if one thing that it awaits does not come",
        "monarch_nb/core/hangs/agreement.py",
        "if not missing or not all(missing):",
        "if not missing:",
        "tests/core/hangs/test_agreement.py",
    ),
    Sabotage(
        "a cell that waits is not dropped by the stop button",
        "monarch_nb/worker/cells/queue.py",
        "                self._turns.remove(turn)\n",
        "                pass\n",
        "tests/worker/cells/test_queue.py tests/notebook/cells/test_stops_and_waits.py",
    ),
    Sabotage(
        "cells of which nobody has seen the end are kept without limit",
        "monarch_nb/worker/cells/unseen.py",
        "if len(self._cells) > MAX_CELLS:",
        "if False:",
        "tests/worker/cells/test_unseen.py",
    ),
    Sabotage(
        "a death is no end of a cell",
        "monarch_nb/control/cells.py",
        "        if not self._client.elastic.holds(ended.process):\n",
        "        if False:\n",
        "tests/notebook/cells/test_stops_and_waits.py",
    ),
    Sabotage(
        "ranks that come up are asked for names",
        "monarch_nb/notebook/completion/completer.py",
        "if mesh is None or not mesh.initialized.done():",
        "if mesh is None:",
        "tests/notebook/completion",
    ),
    # what tests may do, and see
    Sabotage(
        "an agent of work lets itself be harmed",
        "monarch_nb/host/agent/agent.py",
        "        if config.testing:\n",
        "        if True:\n",
        "tests/security/test_injected_faults.py",
    ),
    Sabotage(
        "a rank of work lets itself be harmed",
        "monarch_nb/worker/main.py",
        "        if not self.proc.config.testing:\n",
        "        if False:\n",
        "tests/security/test_injected_faults.py",
    ),
    Sabotage(
        "nothing happens at a point of a rank",
        "monarch_nb/actors/sync_driver.py",
        '            point("call.end")\n',
        "            pass\n",
        "tests/testing/test_sweep.py",
    ),
    Sabotage(
        "a rank that is starting is told of no fault",
        "monarch_nb/testing/armed.py",
        'rank["env"][AT_START] =',
        'rank["env"]["NOTHING"] =',
        "tests/testing/test_sweep.py",
    ),
    Sabotage(
        "who has stopped itself does not wake up",
        "monarch_nb/testing/armed.py",
        "_woken_after(self.seconds) if self.seconds else",
        "",
        "tests/testing/test_sweep.py",
    ),
    Sabotage(
        "the process that a test leaves is not seen",
        "monarch_nb/testing/leaks.py",
        "                yield describe_process(pid)\n",
        "                yield from ()\n",
        "tests/testing/test_plugin.py",
    ),
    # what a person reads
    Sabotage(
        "a question is cleared away with the line above it",
        "monarch_nb/notebook/debug/prompts.py",
        "                cell.output.make_way()\n                asked =",
        "                cell.output.settle()\n                asked =",
        "tests/notebook/debug/test_input.py",
    ),
)
