"""Jobs: the hosts that a program asks for, and commands that run on them."""
