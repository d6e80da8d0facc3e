"""What pydevd takes for a socket: whole messages, however they are cut."""

import json

import pytest

from monarch_nb.debugger.pydevd import Wire

SAID = [{"text": "é" * 40}, {"a": "x\r\n\r\ny"}, {}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_are_framed_by_bytes(size):
    heard: list[object] = []
    wire = Wire(heard.append)
    stream = b""
    for each in SAID:
        body = json.dumps(each, ensure_ascii=False).encode()
        stream += b"Content-Length: %d\r\n\r\n" % len(body) + body
    for start in range(0, len(stream), size):
        wire.sendall(stream[start : start + size])
    assert heard == SAID


def test_what_is_sent_is_read_as_from_a_peer():
    wire = Wire(lambda _: None)
    wire.send({"command": "é"})
    head, _, body = wire.recv(1024).partition(b"\r\n\r\n")
    assert head == b"Content-Length: %d" % len(body)
    assert json.loads(body) == {"command": "é"}
    wire.close()
    assert wire.recv(1024) == b""
