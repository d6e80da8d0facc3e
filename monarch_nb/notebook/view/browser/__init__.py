"""Pages: their channels, messages and widget."""
