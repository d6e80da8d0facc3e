"""A stand-in for the API server, job controller and scheduler of Kubernetes, for machines without.

It answers as a real one (1.20.2) was seen to answer: the words of its refusals, of its scheduler
and of its quota are recorded from there. It has two nodes of 8 GPUs and the namespace `ml`.
"""

import base64
import json
import random
import re
import shutil
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.clusters.engines.control_plane import ADMIN, GUEST, write_config

_PATH = re.compile(
    r"/(?:api|apis/batch)/v1/namespaces/(?P<ns>[^/]+)/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?"
)
_INDEX = "batch.kubernetes.io/job-completion-index"
_GPUS = 8
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}
Json = dict[str, Any]


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": _REASONS[self.code],
            "code": self.code,
        }


class StandIn:
    """`config(token)` as of a `ControlPlane`. Also a context manager, which ends it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kube-"))
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Json] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def config(self, token: str = ADMIN) -> Path:
        return write_config(self._folder, f"http://127.0.0.1:{self._server.server_port}", token)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        shutil.rmtree(self._folder)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"null")
                user = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                try:
                    code, found = 200, answer(self.command, self.path, body, user)
                except _Refused as error:
                    code, found = error.code, error.status()
                data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815  # http.server's names

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, verb: str, url: str, body: Any, user: str) -> Json | str:
        path, _, query = url.partition("?")
        found = _PATH.fullmatch(path)
        if user not in {ADMIN, GUEST}:
            raise _Refused(401, "Unauthorized")
        assert found, f"{verb} {url}: the stand-in does not know it"
        kind, name = found["kind"], found["name"]
        if user == GUEST:
            group = "batch" if kind == "jobs" else ""
            doing = {"POST": "create", "GET": "get", "PATCH": "patch", "DELETE": "delete"}[verb]
            raise _Refused(
                403,
                f'{kind} is forbidden: User "guest" cannot {doing} resource "{kind}" in API group '
                f'"{group}" in the namespace "{found["ns"]}"',
            )
        if found["ns"] != "ml":
            raise _Refused(404, f'namespaces "{found["ns"]}" not found')
        with self._lock:
            if verb == "POST":
                return self._post(kind, body)
            if name is None:
                return {"items": self._list(kind, query)}
            if (kind, name) not in self._objects:
                raise _Refused(404, f'{kind} "{name}" not found')
            one = self._objects[kind, name]
            if verb == "DELETE":
                self._delete(kind, one)
            elif verb == "PATCH":
                _merge(one, body)
            elif found["sub"] == "log":
                return (one["metadata"].get("annotations") or {}).get("log", "")
            self._control_jobs()
            return one

    def _list(self, kind: str, query: str) -> list[Json]:
        self._control_jobs()
        some = [one for (of, _), one in self._objects.items() if of == kind]
        if wanted := re.search(r"job-name%3D([\w-]+)", query):
            some = [one for one in some if _job_of(one) == wanted[1]]
        if wanted := re.search(r"involvedObject.name%3D([\w-]+)", query):
            some = [one for one in some if one["involvedObject"]["name"] == wanted[1]]
        return some

    def _post(self, kind: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if (kind, name) in self._objects:
            raise _Refused(409, f'{kind} "{name}" already exists')
        body["metadata"]["uid"] = f"{random.getrandbits(64):x}"
        if kind == "secrets":
            body["data"] = {key: _base64(value) for key, value in body.pop("stringData").items()}
        self._objects[kind, name] = body
        if kind == "jobs":
            body["status"] = {"active": body["spec"]["completions"]}
            body["began"] = time.monotonic()
            self._make_pods(body)
        return body

    def _make_pods(self, job: Json) -> None:
        name = job["metadata"]["name"]
        if any(kind == "resourcequotas" for kind, _ in self._objects):
            self._objects["events", name] = {
                "metadata": {"name": name},
                "involvedObject": {"name": name},
                "type": "Warning",
                "reason": "FailedCreate",
                "message": f'Error creating: pods "{name}-x" is forbidden: exceeded quota: few, '
                "requested: pods=1, used: pods=0, limited: pods=0",
            }
            return
        for index in range(job["spec"]["completions"]):
            pod = json.loads(json.dumps(job["spec"]["template"]))
            gpus = pod["spec"]["containers"][0]["resources"]["requests"].get("nvidia.com/gpu", 0)
            about = {"labels": {"job-name": name}, "annotations": {_INDEX: str(index)}}
            pod["metadata"] = {"name": f"{name}-{index}-x", **about}
            scheduled = {"type": "PodScheduled", "status": "True"}
            if int(gpus) > _GPUS:
                scheduled |= {
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                }
            else:
                pod["spec"]["nodeName"] = f"node{index % 2}"
            pod["status"] = {"phase": "Pending", "conditions": [scheduled]}
            self._objects["pods", pod["metadata"]["name"]] = pod

    def _control_jobs(self) -> None:
        for (kind, name), job in list(self._objects.items()):
            if kind != "jobs" or job["status"].get("conditions"):
                continue
            pods = [one for (of, _), one in self._objects.items() if of == "pods"]
            phases = [one["status"]["phase"] for one in pods if _job_of(one) == name]
            limit = job["spec"].get("activeDeadlineSeconds")
            if limit is not None and time.monotonic() - job["began"] > limit:
                self._delete_pods(name)
                said = "Job was active longer than specified deadline"
                _end(job, "Failed", "DeadlineExceeded", said)
            elif phases and set(phases) == {"Succeeded"}:
                _end(job, "Complete", "", "")

    def _delete(self, kind: str, one: Json) -> None:
        name = one["metadata"]["name"]
        del self._objects[kind, name]
        if kind == "jobs":
            self._delete_pods(name)
            for key, other in list(self._objects.items()):
                owners = other["metadata"].get("ownerReferences") or []
                if any(each["uid"] == one["metadata"]["uid"] for each in owners):
                    del self._objects[key]

    def _delete_pods(self, job: str) -> None:
        for key, one in list(self._objects.items()):
            if key[0] == "pods" and _job_of(one) == job:
                del self._objects[key]


def _job_of(pod: Json) -> str | None:
    return (pod["metadata"].get("labels") or {}).get("job-name")


def _end(job: Json, kind: str, reason: str, message: str) -> None:
    condition = {"type": kind, "status": "True", "reason": reason, "message": message}
    job["status"] = {"conditions": [condition]}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _merge(one: Json, patch: Json) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(one.get(key), dict):
            _merge(one[key], value)
        elif value is None:
            one.pop(key, None)
        else:
            one[key] = value
