"""An exception that is raised in a thread from outside, and taken back there."""

TRACED = """
import sys, threading
from monarch_nb.process.interrupts import raise_in_thread, take_back

def inner():
    return "traced"

def run():
    me = threading.get_ident()
    try:
        raise_in_thread(me, KeyboardInterrupt)
        sum(i for i in range(1_000))
    except KeyboardInterrupt:
        print("came up")
    take_back()
    sys.settrace(lambda *_: None)
    print(inner())
    sys.settrace(None)

thread = threading.Thread(target=run, daemon=True)
thread.start()
thread.join(10)
print("ended" if not thread.is_alive() else "hangs", flush=True)
"""


def test_a_debugger_steps_into_calls_after_one_was_taken_back(program):
    done = program(TRACED)
    assert done.stdout == "came up\ntraced\nended\n", done.stderr


AT_ITS_END = """
import signal, sys, threading
from monarch_nb.process.interrupts import Interrupts, calmly

main = threading.main_thread().ident
calls = Interrupts(lambda: signal.pthread_kill(main, signal.SIGINT))
unknown = []

def handler(*_):
    is_mine = calls.hit()
    if is_mine:
        raise KeyboardInterrupt
    if is_mine is None:
        unknown.append(1)

def strike(started, key):
    started.append(key)
    calls.interrupt(key)

def call():
    thread.start()
    while not started:
        pass
    for _ in range(number % 4):
        pass

signal.signal(signal.SIGINT, handler)
sys.setswitchinterval(1e-6)
for number in range(2_000):
    key, started = (1, number), []
    thread = threading.Thread(target=strike, args=(started, key))
    calls.begin(key)
    try:
        calls.during(key, call)
    except KeyboardInterrupt:
        pass
    calmly(lambda: calls.finish(key))
    thread.join()
print("unknown:", len(unknown))
signal.raise_signal(signal.SIGINT)
print("of another:", len(unknown))
"""


def test_an_interrupt_that_comes_while_its_call_ends_leaves_nothing_behind(program):
    """Else the next interrupt, of a cell, is taken for this one, and the cell runs on."""
    done = program(AT_ITS_END)
    assert done.stdout == "unknown: 0\nof another: 1\n", done.stderr
