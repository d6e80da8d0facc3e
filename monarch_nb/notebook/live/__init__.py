"""What the browser sees of the meshes while they work: the kernel's side of docs/comms.md."""
