"""Which mesh computes: activation, streams, device meshes, distributed tensors."""
