"""What a node does with pods, by the API: their commands run here, as processes of this machine.

It is no kubelet: there are no containers and no images. The ticket is put where the command reads
it; the index of a host is given as by an Indexed Job, also where the server is too old for one:
a pod that comes for one that has failed has the same.
"""

import base64
import contextlib
import itertools
import os
import signal
import subprocess
import threading
from pathlib import Path

from kubernetes.client import ApiException

from tests.source import ROOT
from tests.support import eventually

_INDEX = "batch.kubernetes.io/job-completion-index"
_MOUNT = "/var/run/monarch_nb/ticket"


class Kubelet:
    """Runs the pods that have a node, until `close`. `holds`: it only looks."""

    def __init__(self, core, namespace: str, folder: Path) -> None:
        self.holds = False
        self._core = core
        self._namespace = namespace
        self._folder = folder
        self._running: dict[str, subprocess.Popen] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def pods(self):
        return self._core.list_namespaced_pod(self._namespace).items

    def say(self, pod: str, **status) -> None:
        """Set the state of a pod."""
        self._core.patch_namespaced_pod_status(pod, self._namespace, {"status": status})

    def evict(self, pod: str, message: str) -> None:
        """End a pod as a node that is short of memory does."""
        process = self._running.pop(pod)
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        self.say(pod, phase="Failed", reason="Evicted", message=message)

    def is_idle(self) -> bool:
        return not self._running

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for each in self._running.values():
            each.terminate()
            each.wait(20)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            pods = {pod.metadata.name: pod for pod in self.pods()}
            for name in set(self._running) - set(pods):
                self._end(name)
            for name, pod in pods.items():
                with contextlib.suppress(ApiException):  # it may have gone meanwhile
                    self._look_at(name, pod)

    def _look_at(self, name: str, pod) -> None:
        if pod.metadata.deletion_timestamp:
            self._end(name)
            self._core.delete_namespaced_pod(name, self._namespace, grace_period_seconds=0)
        elif name in self._running:
            code = self._running[name].poll()
            if code is not None:
                self._tell_end(name, code)
        elif pod.spec.node_name and pod.status.phase == "Pending" and not self.holds:
            self._begin(name, pod, index_of(pod) or self._free_index(pod))

    def _free_index(self, pod) -> str:
        of_its_job = [
            each
            for each in self.pods()
            if each.metadata.labels["job-name"] == pod.metadata.labels["job-name"]
        ]
        taken = {index_of(each) for each in of_its_job if each.status.phase == "Running"}
        return next(index for index in map(str, itertools.count()) if index not in taken)

    def _begin(self, name: str, pod, index: str) -> None:
        volumes = [volume.secret for volume in pod.spec.volumes if volume.secret]
        secret = self._core.read_namespaced_secret(volumes[0].secret_name, self._namespace)
        ticket = self._folder / f"{name}.ticket"
        ticket.write_bytes(base64.b64decode(secret.data["ticket"]))
        command = [word.replace(_MOUNT, str(ticket)) for word in pod.spec.containers[0].command]
        env = {**os.environ, "JOB_COMPLETION_INDEX": index, "PYTHONPATH": python_path()}
        with (self._folder / f"{name}.log").open("w") as log:
            self._running[name] = subprocess.Popen(command, env=env, stderr=log)
        about = {"metadata": {"annotations": {_INDEX: index}}}
        self._core.patch_namespaced_pod(name, self._namespace, about)
        self.say(name, phase="Running", containerStatuses=[_container(running={})])

    def _tell_end(self, name: str, code: int) -> None:
        del self._running[name]
        log = {"metadata": {"annotations": {"log": (self._folder / f"{name}.log").read_text()}}}
        self._core.patch_namespaced_pod(name, self._namespace, log)
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        phase = "Failed" if code else "Succeeded"
        self.say(name, phase=phase, containerStatuses=[_container(terminated=ended)])

    def _end(self, name: str) -> None:
        if (process := self._running.pop(name, None)) is not None:
            process.terminate()
            eventually(lambda: process.poll() is not None, 20)


def index_of(pod) -> str | None:
    return (pod.metadata.annotations or {}).get(_INDEX)


def python_path() -> str:
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def _container(**state) -> dict[str, object]:
    about = {"name": "host", "image": "image", "imageID": "", "ready": False, "restartCount": 0}
    return {**about, "state": state}
