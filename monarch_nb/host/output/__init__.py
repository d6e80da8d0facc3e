"""What ranks write to their file descriptors."""
