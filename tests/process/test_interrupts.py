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
