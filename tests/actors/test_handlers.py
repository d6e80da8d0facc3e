"""The table of handlers of a process."""

import pytest

from monarch_nb.config import Config
from monarch_nb.core.wire.messages.actors import Fence, Release
from monarch_nb.process.process import Proc, serve


@pytest.mark.parametrize("kind", [Fence, Release])
def test_a_message_has_one_handler(tmp_path, kind):
    tmp_path.chmod(0o700)
    proc = Proc(process=1, agent=2, controller=1, run_dir=tmp_path, config=Config())
    twice = [serve(kind, lambda message, frame: None)] * 2
    with pytest.raises(ValueError, match=f"^{kind.__name__} has two handlers$"):
        proc.start([*twice, serve(kind, lambda message, frame: None)])
    proc.close(0)
