"""`KubernetesJob`: hosts that are the pods of a Kubernetes Job, one Job for each mesh; one more for
those that are asked for later, as Kubernetes before 1.27 lets no Job grow.

Why a Job and not a StatefulSet: a pod whose controller has gone ends and is not started again, the
index of a host comes from the Job, queues such as Kueue know what it is, and Kubernetes itself
removes what nobody needs: a Job ends at a deadline that this program moves ahead while it waits,
and goes `_KEEP_S` after its end, with the Secret that it owns.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import shlex
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob, may_come
from monarch_nb.control.jobs.kubernetes.pods import (
    NOT_INSTALLED,
    Api,
    Json,
    KubeConfig,
    Seen,
    place_of,
    plain,
    why_ended,
)
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import last_lines
from monarch_nb.net import wire
from monarch_nb.net.hosts.joining import Ticket

_END_S: Final = 6.0
_LOOK_S: Final = 2.0
_LEASE_S: Final = 600  # a Job that is waited for by nobody ends after it
_RENEW_S: Final = 120.0
_KEEP_S: Final = 300  # to read the logs of a Job that has ended
_RETRIES: Final = 1000  # of pods that fail: as many as a Job may have, it ends with all its pods
_SHOWN: Final = 3  # pods that are named
_TICKET: Final = "/var/run/monarch_nb/ticket"
_SHM: Final = "/dev/shm"  # noqa: S108  # of a container
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,39}")
_ENDED: Final = "the job was ended"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageSpec:
    """The image of the pods of a mesh, which has monarch_nb installed, and what each pod has.

    Example:
        >>> ImageSpec("registry/ml:1", {"nvidia.com/gpu": 8}).resources
        {'nvidia.com/gpu': 8}
    """

    image: str
    resources: Mapping[str, str | int] | None = None


class KubernetesJob(JoiningJob):
    """Hosts that are pods in a Kubernetes cluster. They end with this program.

    The pods dial this program: run it in the cluster (a notebook in a pod), or where the pods'
    network leads to it, or give an `address` that leads to it. The ticket is in a Secret that only
    the pods mount. The user must be allowed to make jobs and secrets in the namespace, and to list
    pods and events and read logs there.

    Args:
        namespace: where everything is made.
        timeout: seconds after which hosts that have not come are given up; None: never.
        kubeconfig: how the cluster is reached.
        address: where the pods find this program: `tcp://host:port`, or `DIAL@BIND` where it
            listens elsewhere; None: all addresses of this host.
        python_exe: the Python in the image.
        env: environment variables of the hosts, and so of their ranks.
        min_hosts: so many of each mesh are enough, once the others cannot come or `timeout` is
            over: `state` waits for that, and its meshes have the hosts that came. None: all.

    Raises:
        LaunchError: from `apply`, `state` and `status`, where there is no client of Kubernetes, or
            the cluster says no.

    Example:
        >>> job = KubernetesJob("ml")                            # doctest: +SKIP
        >>> image = ImageSpec("registry/ml:1", {"nvidia.com/gpu": 8})
        >>> job.add_mesh("trainers", 4, image_spec=image)        # doctest: +SKIP
        >>> hosts = job.state(cached_path=None).trainers         # doctest: +SKIP
        >>> job.status().reason                                  # doctest: +SKIP
        'Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.'
    """

    def __init__(
        self,
        namespace: str,
        timeout: float | None = None,
        kubeconfig: KubeConfig | None = None,
        *,
        address: str | None = None,
        python_exe: str = "python3",
        env: Mapping[str, str] | None = None,
        min_hosts: int | None = None,
    ) -> None:
        super().__init__(min_hosts)
        self._namespace = namespace
        self._timeout = timeout
        self._job_config = kubeconfig or KubeConfig()
        self._address = address
        self._python = python_exe
        self._env = dict(env or {})
        self._meshes: dict[str, Json] = {}
        self._token = secrets.token_hex(3)  # names what is made; not a secret
        self._job_running: list[_Running] = []
        self._job_later = 0  # Jobs that were made after the first

    def add_mesh(
        self,
        name: str,
        num_replicas: int,
        *,
        image_spec: ImageSpec | None = None,
        pod_template: Any = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        spares: int = 0,
    ) -> None:
        """Add a host mesh of so many pods.

        Args:
            name: lower-case letters and digits, a letter first, 40 at most.
            num_replicas: how many pods.
            image_spec: the image, and what each pod has.
            pod_template: instead of it a whole template, as a dictionary as in YAML or Kubernetes'
                `V1PodTemplateSpec`; its first container is the host.
            labels: of the Job, such as the name of a queue.
            annotations: of the Job.
            spares: so many more pods, without ranks: they take the place of hosts that are lost
                when a mesh on them is healed. Without one, another pod is asked for.

        Raises `ValueError` for another name, no pod, and not exactly one of image and template.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a mesh here: 40 lower-case letters and digits at most, a "
                "letter first"
            )
        if num_replicas < 1:
            raise ValueError(f"{name}={num_replicas}: a mesh has at least one host")
        if spares < 0:
            raise ValueError(f"spares={spares}: a mesh has none, or some")
        if (image_spec is None) == (pod_template is None):
            raise ValueError(
                "name the image, image_spec=ImageSpec('registry/image'), or a pod_template. Pods "
                "that others have made are attached with monarch_nb.attach_to_workers"
            )
        self._meshes[name] = {
            "replicas": num_replicas,
            "image": None if image_spec is None else asdict(image_spec),
            "template": plain(pod_template),
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        }
        self._spares[name] = spares

    def status(self) -> JobStatus:
        """Return where the job stands now; `reason` is what Kubernetes says of the pods that are
        not here."""
        if not self._job_running:
            asked = sum(map(self._count, self._meshes))
            return JobStatus("k8s", Stage.GONE, 0, asked, reason="it has no hosts; job.apply()")
        names = ", ".join(each.name for each in self._job_running)
        return self._stands_with("k8s", names, (each.stand() for each in self._job_running))

    def script(self) -> str:
        """Return the manifest, without the ticket, which is made when the job is applied.

        Raises `LaunchError` where the client of Kubernetes is not installed.
        """
        try:
            import yaml
        except ModuleNotFoundError:
            raise LaunchError(NOT_INSTALLED) from None
        made_later = "(made when the job is applied)"
        parts = [
            part
            for mesh in self._meshes
            for part in self._objects(mesh, self._name(mesh), self._count(mesh), made_later)
        ]
        return str(yaml.safe_dump_all(parts, sort_keys=False))

    def shell_command(self, host: int) -> str:
        [running] = [each for each in self._job_running if host in each.hosts]
        config = self._job_config.local
        reached = [] if config is None else ["--kubeconfig", str(config)]
        pod = running.pod_of(host)
        return shlex.join(
            ["kubectl", *reached, "exec", "-it", "-n", self._namespace, pod, "--", "sh"]
        )

    def _name(self, mesh: str) -> str:
        return f"monarch-{mesh}-{self._token}"

    def _count(self, mesh: str) -> int:
        count: int = self._meshes[mesh]["replicas"] + self._spares.get(mesh, 0)
        return count

    def _objects(self, mesh: str, name: str, count: int, ticket: str) -> tuple[Json, Json]:
        # a Secret, and the Job whose pods mount it
        return self._secret(mesh, name, ticket), self._manifest(mesh, name, count)

    def _metadata(self, mesh: str, name: str) -> Json:
        wanted = self._meshes[mesh]
        own = {"app.kubernetes.io/managed-by": "monarch_nb", "monarch-nb/mesh": mesh}
        about = {"labels": {**own, **wanted["labels"]}, "annotations": wanted["annotations"]}
        said = {key: value for key, value in about.items() if value}
        return {"name": name, "namespace": self._namespace, **said}

    def _secret(self, mesh: str, name: str, ticket: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata(mesh, name),
            "stringData": {"ticket": ticket},
        }

    def _manifest(self, mesh: str, name: str, count: int) -> Json:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(mesh, name),
            "spec": {
                "completions": count,
                "parallelism": count,
                "completionMode": "Indexed",
                "backoffLimitPerIndex": 0,  # a host that is lost takes no other with it
                "backoffLimit": _RETRIES,  # so where the former is not known
                "activeDeadlineSeconds": _LEASE_S,
                "ttlSecondsAfterFinished": _KEEP_S,
                "template": pod_of(self._meshes[mesh], name, self._python),
            },
        }

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a KubernetesJob cannot run a client script; a LocalJob can")
        if not self._meshes:
            raise ValueError("this job has no hosts: job.add_mesh('trainers', 2, image_spec=...)")
        client().at_close.append(self._close)
        for mesh in self._meshes:
            self._furnish(mesh, self._start(mesh, self._name(mesh), self._count(mesh)))

    def _start(self, mesh: str, name: str, count: int) -> list[int]:
        running, objects = self._expect(mesh, name, [f"{name}-{index}" for index in range(count)])
        try:
            running.start(*objects)
        except BaseException:
            running.give_up(_ENDED)
            running.delete()
            self._job_running.remove(running)
            raise
        return running.hosts

    def _expect(
        self, mesh: str, name: str, places: Sequence[str]
    ) -> tuple[_Running, tuple[Json, Json]]:
        controller = client()
        api = Api(self._job_config, self._namespace)
        hosts, ticket = controller.await_hosts(places, _bind(self._address))
        running = _Running(api, name, controller, hosts, self._timeout)
        self._job_running.append(running)
        line = _for_pods(ticket, self._address)._replace(env=self._env).to_line().decode()
        return running, self._objects(mesh, name, len(hosts), line)

    def _ask_again(self, lost: int) -> int:
        # one more pod, in a Job of its own
        [mesh] = [name for name, each in self._job_meshes.items() if each.has_known(lost)]
        place = client().host_words(wire.agent_id(lost))
        running, objects = self._expect(mesh, self._next_name(mesh), [place])
        try:
            running.start(*objects)
        except LaunchError as error:
            running.give_up(str(error))
            running.delete()
        return running.hosts[0]

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        if places:
            raise LaunchError("Kubernetes chooses its nodes itself: scale without names of hosts")
        return self._start(name, self._next_name(name), count)

    def _next_name(self, mesh: str) -> str:
        self._job_later += 1
        return f"{self._name(mesh)}-{self._job_later}"

    def _let_go(self, hosts: Sequence[int]) -> None:
        for each in list(self._job_running):
            if each.let_go(hosts):
                each.delete()
                self._job_running.remove(each)

    def _kill(self) -> None:
        for each in self._job_running:
            each.give_up(_ENDED)
        meshes = [each.mesh for each in self._job_meshes.values()]
        shut_down(meshes, time.monotonic() + _END_S)
        self._delete()
        self._job_running.clear()
        self._job_meshes.clear()
        self._token = secrets.token_hex(3)  # the old ones may take their time to go

    def _delete(self) -> None:
        for each in self._job_running:
            each.delete()

    def _close(self) -> None:
        # this program ends
        for each in self._job_running:
            each.close()

    def _keep(self) -> Json:
        running = [[each.name, each.hosts] for each in self._job_running]
        return {"token": self._token, "later": self._job_later, "running": running}

    def let_stay(self) -> None:
        for each in self._job_running:
            each.let_stay()

    def _have_again(self, kept: Json) -> None:
        self._token, self._job_later = kept["token"], kept["later"]
        for name, hosts in kept["running"]:
            api = Api(self._job_config, self._namespace)
            known = [host for host in hosts if host in self._hosts()]
            running = _Running(api, name, self._controller, known, None)
            running.is_found()
            self._job_running.append(running)
        self._controller.at_close.append(self._close)

    def _saved_fields(self) -> Json:
        local, remote = self._job_config.local, self._job_config.remote
        own = None if local is None else str(local)
        return {**super()._saved_fields(), "kubeconfig": own if remote is None else remote}

    def _load_fields(self, fields: Json) -> None:
        path = fields.pop("kubeconfig")
        super()._load_fields(fields)
        self._job_config = KubeConfig() if path is None else KubeConfig.from_path(path)
        self._job_running, self._job_later = [], 0


def pod_of(wanted: Json, secret: str, python: str) -> Json:
    """Return the template of the pods of a mesh, which read their ticket from a Secret.

    By standard input: so it is read whatever user the image runs as.
    """
    join = f'-P -m monarch_nb.host.join --index "$JOB_COMPLETION_INDEX" < {_TICKET}'
    template: Json = json.loads(json.dumps(wanted["template"] or {}))  # a copy
    spec = template.setdefault("spec", {})
    host = spec.setdefault("containers", [{}])[0]
    host.setdefault("name", "host")
    if wanted["image"]:
        host["image"] = wanted["image"]["image"]
        amounts = {key: str(value) for key, value in (wanted["image"]["resources"] or {}).items()}
        host["resources"] = {"requests": amounts, "limits": dict(amounts)}
    host["command"] = ["sh", "-c", f"exec {shlex.quote(python)} {join}"]
    mounts, volumes = host.setdefault("volumeMounts", []), spec.setdefault("volumes", [])
    mounts.append({"name": "ticket", "mountPath": str(Path(_TICKET).parent), "readOnly": True})
    volumes.append({"name": "ticket", "secret": {"secretName": secret}})
    if not any(mount["mountPath"] == _SHM for mount in mounts):
        mounts.append({"name": "shm", "mountPath": _SHM})  # else it has 64 MB
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    spec["restartPolicy"] = "Never"
    spec.setdefault("automountServiceAccountToken", False)
    return template


class _Running:
    """One Job: made, looked at until its hosts are here, deleted."""

    def __init__(
        self,
        api: Api,
        name: str,
        controller: Client,
        hosts: Sequence[int],
        timeout_s: float | None,
    ) -> None:
        self.name = name
        self._api = api
        self._controller = controller
        self.hosts = list(hosts)
        self._wanted = set(hosts)
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._renewed = self._began
        self._told: set[int] = set()  # places whose end was told
        self._made: list[str] = []
        self._over = threading.Event()
        self._stays = False
        self._thread = threading.Thread(target=self._run, name="monarch-k8s", daemon=True)

    def start(self, secret: Json, job: Json) -> None:
        """Make the Secret and the Job, which owns it from then on."""
        self._create("secret", secret)
        uid = self._create("job", job)["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": uid}
        self._api.patch("secret", self.name, {"metadata": {"ownerReferences": [owner]}})
        self._thread.start()

    def _create(self, kind: str, body: Json) -> Json:
        made = self._api.create(kind, body)
        self._made.append(kind)
        return made

    def give_up(self, why: str) -> None:
        self._over.set()
        for host in self.hosts:
            self._controller.give_up_host(host, why)

    def let_stay(self) -> None:
        """Leave the pods where they are when this program ends. Harmless when repeated. Raises
        `LaunchError` where Kubernetes does not let them stay."""
        if not self._stays:
            self._renew(None)
            self._stays = True

    def is_found(self) -> None:
        """Have what another program has made, and has let stay."""
        self._made, self._stays = ["secret", "job"], True

    def close(self) -> None:
        """Delete all that was made as this program ends, unless it stays."""
        if self._stays:
            self._over.set()
        else:
            self.delete()

    def pod_of(self, host: int) -> str:
        """Ask for the name of the pod that a host is. Raises `LaunchError` where there is none."""
        place = self.hosts.index(host)
        names = [pod["metadata"]["name"] for pod in self._look().pods if place_of(pod) == place]
        if not names:
            raise LaunchError(f"{self.name}-{place} has no pod any more")
        return str(names[-1])

    def let_go(self, hosts: Collection[int]) -> bool:
        """Want these hosts no more; whether none is wanted now. A pod that has ended has given its
        node back."""
        self._wanted.difference_update(hosts)
        return not self._wanted

    def delete(self) -> None:
        """Delete all that was made. Harmless when repeated; what cannot be is said."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        while self._made:
            kind = self._made.pop()
            try:
                self._api.delete(kind, self.name)
            except LaunchError as error:
                _log.warning("%s %s could not be deleted: %s", kind, self.name, error)

    def stand(self) -> tuple[Stage, str]:
        """Ask Kubernetes where this stands, and why it is not further."""
        seen = self._look()
        ended = self._ends(seen.ended)
        if seen.why_over is not None:
            return Stage.GONE, "\n".join(filter(None, [seen.why_over, ended]))
        coming = may_come(self._controller, self.hosts)
        joined = self._controller.hosts_here(self.hosts)  # after it: who comes now is in one
        if not coming or joined + len(seen.ended) >= len(self.hosts):
            return Stage.UP if joined else Stage.GONE, ended
        if joined or seen.running:
            return Stage.JOINING, self._why_joining(seen, joined)
        return Stage.QUEUED, seen.why_waiting

    def _why_joining(self, seen: Seen, joined: int) -> str:
        said = [seen.why_waiting]
        if len(seen.running) > joined:
            names = ", ".join(pod["metadata"]["name"] for pod in seen.running[:_SHOWN])
            logs = f"kubectl logs -n {self._api.namespace} job/{self.name}"
            said.append(
                f"{len(seen.running)} pods run ({names}), {joined} have dialled in. If none does, "
                f"no network leads from there to this program: see {logs}, run this program in "
                "the cluster, or name an address that leads here: KubernetesJob(address=...)"
            )
        return "\n".join(filter(None, said))

    # the thread

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                if not may_come(self._controller, self.hosts):
                    self._renew(None)
                    return
                self._renew_in_time()
                self._tell(self._look())
            except LaunchError as error:  # the next look may be answered
                _log.debug("%s: %s", self.name, error)

    def _renew_in_time(self) -> None:
        now = time.monotonic()
        if now - self._renewed > _RENEW_S:
            self._renewed = now
            self._renew(int(now - self._began) + _LEASE_S)

    def _renew(self, deadline_s: int | None) -> None:
        self._api.patch("job", self.name, {"spec": {"activeDeadlineSeconds": deadline_s}})

    def _tell(self, seen: Seen) -> None:
        for pod in seen.ended:
            place = place_of(pod)
            if place is None or place in self._told:
                continue
            if place < len(self.hosts):
                self._told.add(place)
                self._controller.give_up_host(self.hosts[place], self._words(pod))
        waited_s = time.monotonic() - self._began
        if self._timeout_s is not None and waited_s > self._timeout_s:
            for host in self.hosts:  # and those that are here may be enough
                why = f"not within {self._timeout_s:g} s: {seen.why_waiting}"
                self._controller.give_up_host(host, why)
        if seen.why_over is not None:
            self.give_up(seen.why_over)

    def _look(self) -> Seen:
        job = self._api.read("job", self.name)
        pods = self._api.list("pod", label_selector=f"job-name={self.name}")
        events: list[Json] = []
        if not pods:
            with contextlib.suppress(LaunchError):  # not everyone may read them
                events = self._api.list("event", field_selector=f"involvedObject.name={self.name}")
        return Seen(job, pods, events)

    def _ends(self, ended: Sequence[Json]) -> str:
        more = len(ended) - _SHOWN
        said = [self._words(pod) for pod in ended[:_SHOWN]]
        return "\n".join([*said, *([f"and {more} pods more"] if more > 0 else [])])

    def _words(self, pod: Json) -> str:
        said = why_ended(pod)
        with contextlib.suppress(LaunchError):  # the pod may be gone with its log
            said = f"{said}\n{last_lines(self._api.log(pod['metadata']['name']), 5)}"
        return said.strip()


def _bind(address: str | None) -> str | None:
    if address is None:
        return None
    where = WorkerAddress.from_text(address)
    return where.bind or where.dial


def _for_pods(ticket: Ticket, address: str | None) -> Ticket:
    if address is None:
        return ticket
    return ticket._replace(addresses=[WorkerAddress.from_text(address).dial])
