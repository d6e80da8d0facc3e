"""Control messages and their answers, as types. How they are written: `codec.py`."""
