"""What tests have a zygote load: it says so, and never ends."""

import os
import threading
from pathlib import Path

Path(os.environ["MNB_TEST_LOADING"]).touch()
threading.Event().wait()
