"""Who comes in at a unix socket in a run dir: the user whose it is."""

import os
import socket

from monarch_nb.control.local_server import LocalServer


def test_the_connection_of_another_user_is_closed_unheard(tmp_path):
    welcome = []
    for user in (os.getuid() + 1, os.getuid()):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(tmp_path / str(user)))
        listener.listen()
        server = LocalServer(listener, user, "test-server", lambda one: welcome.append(one.close()))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(5)
            stream.connect(str(tmp_path / str(user)))
            assert stream.recv(1) == b""
        server.close()
        assert len(welcome) == (user == os.getuid())
