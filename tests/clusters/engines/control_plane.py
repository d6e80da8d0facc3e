"""A real control plane of Kubernetes, without a node: etcd, API server, controllers, scheduler.

Its programs are in the folder that MONARCH_NB_KUBERNETES names: `etcd`, `kube-apiserver`,
`kube-controller-manager`, `kube-scheduler`. No package has them; `build_kubernetes.sh` makes
them from Debian's source in ten minutes. Without them tests use `stand_in.py`.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support import eventually, listening_ports

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_CONTROLLERS = "job,namespace,garbagecollector,resourcequota,ttl-after-finished"
_CONFIG = """
    apiVersion: v1
    kind: Config
    clusters: [{{name: c, cluster: {{server: "{server}"{trust}}}}}]
    users: [{{name: u, user: {{token: {token}}}}}]
    contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
    current-context: x
"""
ADMIN, GUEST, STRANGER = "tok-admin", "tok-guest", "tok-stranger"


def programs() -> Path | None:
    """Return the folder with the programs, if it is named and has them."""
    folder = Path(os.environ.get("MONARCH_NB_KUBERNETES", "/nowhere"))
    return folder if all((folder / name).exists() for name in PROGRAMS) else None


def write_config(folder: Path, server: str, token: str = ADMIN, trust: Path | None = None) -> Path:
    """Write a file as kubectl reads it. `trust`: the certificate of the server."""
    said = "" if trust is None else f', certificate-authority: "{trust}"'
    path = folder / f"{token}.kubeconfig"
    if not path.exists():  # else who starts now could find it empty
        path.write_text(textwrap.dedent(_CONFIG).format(server=server, token=token, trust=said))
        path.chmod(0o600)
    return path


def client_of(kubeconfig: Path):
    """Return a client that keeps no connection: it would be open until its memory is collected."""
    from kubernetes import config

    api = config.new_client_from_config(str(kubeconfig))
    api.set_default_header("Connection", "close")
    return api


class ControlPlane:
    """`config(token)` is a kubeconfig for one of the users. Also a context manager."""

    def __init__(self, folder: Path) -> None:
        self._programs = folder
        self._folder = Path(tempfile.mkdtemp(prefix="kube-"))
        self._started: list[subprocess.Popen] = []
        self._server = ""

    def config(self, token: str = ADMIN) -> Path:
        return write_config(self._folder, self._server, token, self._folder / "certs/apiserver.crt")

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for each in reversed(self._started):
            each.kill()
            each.wait()
        shutil.rmtree(self._folder)

    def _start_all(self) -> None:
        store, peers, port = (_free_port() for _ in range(3))
        clients = f"http://127.0.0.1:{store}"
        self._start(
            "etcd",
            f"--data-dir={self._folder}/etcd",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
        )
        users = f'{ADMIN},admin,1,"system:masters"\n{GUEST},guest,2\n'
        (self._folder / "tokens.csv").write_text(users)
        key = self._folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._start(
            "kube-apiserver",
            f"--etcd-servers={clients}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._folder}/certs",
            f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--advertise-address=127.0.0.1",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--feature-gates=TTLAfterFinished=true",
        )
        self._server = f"https://127.0.0.1:{port}"
        eventually(self._is_ready, 40, "the API server answers")
        own = f"--kubeconfig={self.config()}"
        more = [f"--controllers={_CONTROLLERS}", "--feature-gates=TTLAfterFinished=true"]
        ports = ["--port=0", "--secure-port=0", "--leader-elect=false"]
        self._start("kube-controller-manager", own, *more, *ports)
        self._start("kube-scheduler", own, *ports)

    def _start(self, name: str, *options: str | Sequence[str]) -> None:
        with (self._folder / f"{name}.log").open("w") as log:
            command = [str(self._programs / name), *options]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        self._started.append(process)

    def _is_ready(self) -> bool:
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        # who is refused keeps the socket for a while
        server = self._started[-1].pid
        if not (self._folder / "certs/apiserver.crt").exists() or not listening_ports(server):
            return False
        api = client_of(self.config())
        try:
            return "default" in [
                n.metadata.name for n in client.CoreV1Api(api).list_namespace().items
            ]
        except (HTTPError, client.ApiException):
            return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
