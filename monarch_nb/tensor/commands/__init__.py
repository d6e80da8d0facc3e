"""What the controller tells ranks to do, and what it knows of the results."""
