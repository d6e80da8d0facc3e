"""Actors that fail in every way, and how to wait for what is told of it."""

import asyncio
import os
import sys

from monarch_nb import Actor, concurrent_endpoint, endpoint
from tests import support


class Oddity(BaseException):
    """No Exception."""


class Holding(Actor):
    """Can be kept busy."""

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def hold(self, started, go_on):
        """Be busy until the file is there."""
        started.send("busy")
        support.until_exists(go_on)


class Fragile(Holding):
    """Fails in every way."""

    def __init__(self, fails=False):
        if fails:
            raise ValueError("cannot be made")

    @endpoint
    def error(self):
        raise ValueError("just an error")

    @endpoint
    def base(self):
        raise Oddity("not an Exception")

    @endpoint
    def generator_exit(self):
        raise GeneratorExit

    @endpoint
    def exit(self, code):
        sys.exit(code)

    @endpoint
    def interrupt(self):
        raise KeyboardInterrupt

    @endpoint(explicit_response_port=True)
    def ported(self, port):
        raise ValueError("escaped")

    @endpoint
    def die(self, how):
        how()


class AsyncFragile(Actor):
    @endpoint
    async def base(self):
        raise Oddity("not an Exception")

    @endpoint
    async def exit(self, code):
        sys.exit(code)

    @endpoint
    async def cancelled(self):
        raise asyncio.CancelledError

    @concurrent_endpoint
    async def error(self):
        raise ValueError("just an error")

    @concurrent_endpoint
    async def concurrent_base(self):
        raise Oddity("not an Exception")

    @concurrent_endpoint(explicit_response_port=True)
    async def ported(self, port):
        raise ValueError("escaped")

    @endpoint
    async def pid(self):
        return os.getpid()


def only(failures):
    """The one failure that was told; the fixture looks again at the end of the test."""
    support.eventually(lambda: failures)
    failures.only_one = True
    return failures[0]
