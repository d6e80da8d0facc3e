"""What a Kubernetes cluster says of a Job and its pods, and how it is asked.

Answers are JSON, as the cluster gives them; what is said of them is found without asking.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from monarch_nb.errors import LaunchError

NOT_INSTALLED: Final = (
    "the client of Kubernetes is not installed here. Type: pip install monarch_nb[k8s]"
)
_CALL_S: Final = (5.0, 20.0)  # to connect, to be answered
INDEX: Final = "batch.kubernetes.io/job-completion-index"
Json = dict[str, Any]


@dataclass(frozen=True)
class KubeConfig:
    """How the cluster is reached: by a file as `kubectl` reads it, or by a `Configuration` of
    Kubernetes' client. Neither: by what a pod has in a cluster, else by the user's own file."""

    local: Path | None = None
    remote: Any = None

    @classmethod
    def from_path(cls, path: str) -> KubeConfig:
        """Name a file."""
        return cls(local=Path(path).expanduser())

    @classmethod
    def from_config(cls, config: Any) -> KubeConfig:
        """Take a `kubernetes.client.Configuration`. A job that has one cannot be saved."""
        return cls(remote=config)


class Seen(NamedTuple):
    """A Job as it was found, None if it is not there, with its pods and events, as JSON."""

    job: Json | None
    pods: list[Json]
    events: list[Json]

    @property
    def running(self) -> list[Json]:
        return [pod for pod in self.pods if pod["status"].get("phase") == "Running"]

    @property
    def ended(self) -> list[Json]:
        return [pod for pod in self.pods if pod["status"].get("phase") in {"Failed", "Succeeded"}]

    @property
    def why_over(self) -> str | None:
        """Why the whole Job has ended; None while it has not."""
        if self.job is None:
            return "its Job was deleted"
        for each in self.job.get("status", {}).get("conditions") or []:
            if each["type"] in {"Failed", "Complete"} and each["status"] == "True":
                return _words_of(each) or "its Job has ended"
        return None

    @property
    def why_waiting(self) -> str:
        """What Kubernetes says of pods that do not run yet, equal ones together."""
        if self.job is not None and self.job["spec"].get("suspend"):
            return "suspended: the queue that it is in has not let it start"
        waiting = [pod for pod in self.pods if pod["status"].get("phase", "Pending") == "Pending"]
        said = Counter(why_pending(pod) for pod in waiting)
        if not self.pods:
            said.update(_words_of(each) for each in self.events if each.get("type") == "Warning")
        many = len(waiting) > 1 and len(said) > 1
        lines = (f"{count} of them: {text}" if many else text for text, count in said.items())
        return "\n".join(lines) or ("" if self.pods else "no pod was made yet")


def place_of(pod: Json) -> int | None:
    """Return which host of the mesh a pod is."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else None


def why_pending(pod: Json) -> str:
    """Return why a pod does not run yet: no node for it, no image for it, or it is being made."""
    status = pod["status"]
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return _words_of(each)
    for each in status.get("containerStatuses") or []:
        if waiting := each.get("state", {}).get("waiting"):
            return _words_of(waiting)
    return "Pending"


def why_ended(pod: Json) -> str:
    """Return how a pod has ended: evicted, out of memory, or with a code."""
    name, status = pod["metadata"]["name"], pod["status"]
    ends = [
        each.get("state", {}).get("terminated") for each in status.get("containerStatuses") or []
    ]
    codes = [f"{end.get('reason', 'ended')} with code {end['exitCode']}" for end in ends if end]
    return ", ".join([f"pod {name}: {_words_of(status) or status['phase']}", *codes])


def _words_of(told: Json) -> str:
    return ": ".join(filter(None, [told.get("reason"), told.get("message")]))


class Api:
    """What is asked of a cluster, in one namespace, with answers as JSON."""

    def __init__(self, config: KubeConfig, namespace: str) -> None:
        try:
            import kubernetes
        except ModuleNotFoundError:
            raise LaunchError(NOT_INSTALLED) from None
        self.namespace = namespace
        with self._said():
            api = _client(kubernetes, config)
        self._core = kubernetes.client.CoreV1Api(api)
        self._batch = kubernetes.client.BatchV1Api(api)

    def create(self, kind: str, body: Json) -> Json:
        return self._ask(f"create_namespaced_{kind}", self.namespace, body)

    def patch(self, kind: str, name: str, body: Json) -> None:
        self._ask(f"patch_namespaced_{kind}", name, self.namespace, body)

    def read(self, kind: str, name: str) -> Json | None:
        """Return an object; None if it is not there."""
        with contextlib.suppress(_NotThereError):
            return self._find(f"read_namespaced_{kind}", name, self.namespace)
        return None

    def list(self, kind: str, **which: str) -> list[Json]:
        found: list[Json] = self._ask(f"list_namespaced_{kind}", self.namespace, **which)["items"]
        return found

    def log(self, pod: str) -> str:
        with self._said():
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=20, _preload_content=False, _request_timeout=_CALL_S
            )
        return bytes(answer.data).decode(errors="replace")

    def delete(self, kind: str, name: str) -> None:
        """Delete an object with all that it owns. One that is not there is no error."""
        with contextlib.suppress(_NotThereError):
            call = f"delete_namespaced_{kind}"
            self._find(call, name, self.namespace, propagation_policy="Background")

    def _ask(self, call: str, *words: Any, **which: str) -> Json:
        try:
            return self._find(call, *words, **which)
        except _NotThereError as error:
            raise LaunchError(str(error)) from None

    def _find(self, call: str, *words: Any, **which: str) -> Json:
        of = self._batch if call.endswith("_job") else self._core
        with self._said():
            asked: Callable[..., Any] = functools.partial(getattr(of, call), *words, **which)
            answer = asked(_preload_content=False, _request_timeout=_CALL_S)
        found: Json = json.loads(answer.data)
        return found

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        # errors of the client and of what is below it, as one message each
        import kubernetes
        import urllib3

        try:
            yield
        except kubernetes.client.ApiException as error:
            kind = _NotThereError if error.status == 404 else LaunchError
            raise kind(refusal(error.status, error.reason, error.body, self.namespace)) from None
        except (kubernetes.config.ConfigException, OSError) as error:
            raise LaunchError(
                f"no cluster is known here: {error}\nType: kubectl config view"
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(
                f"the cluster does not answer: {error}\nType: kubectl cluster-info"
            ) from None


class _NotThereError(LaunchError):
    pass


def refusal(status: int, reason: str, body: str | bytes | None, namespace: str) -> str:
    """Return what the cluster has said to a request that it refuses, with what to type."""
    try:
        said = json.loads(body or "{}").get("message", reason)
    except (ValueError, AttributeError):
        said = reason
    advice = {
        401: "Your login has expired or is not known there. Type: kubectl auth whoami",
        403: f"Type: kubectl auth can-i --list -n {namespace}",
        404: "Type: kubectl get namespaces",
    }
    return "\n".join(filter(None, [f"Kubernetes says {status}: {said}", advice.get(status)]))


def _client(kubernetes: Any, config: KubeConfig) -> Any:
    if config.remote is not None:
        return kubernetes.client.ApiClient(config.remote)
    own = kubernetes.client.Configuration()
    own.retries = 1  # else the end of a program waits four times for a cluster that has gone
    if config.local is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        kubernetes.config.load_incluster_config(client_configuration=own)
    else:
        file = None if config.local is None else str(config.local)
        kubernetes.config.load_kube_config(config_file=file, client_configuration=own)
    return kubernetes.client.ApiClient(own)


def plain(template: Any) -> Json | None:
    if template is None or isinstance(template, dict):
        return template
    import kubernetes

    found: Json = kubernetes.client.ApiClient().sanitize_for_serialization(template)
    return found
