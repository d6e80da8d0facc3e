"""Memory and tensors that go from process to process directly."""
