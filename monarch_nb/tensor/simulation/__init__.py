"""Programs of tensors without processes: what they would tell ranks to do, and the memory there."""
