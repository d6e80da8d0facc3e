"""What a terminal asks of running kernels, and their answers: docs/terminal.md."""
