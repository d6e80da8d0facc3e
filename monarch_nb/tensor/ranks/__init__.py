"""The part of tensors that runs on ranks."""
