"""What a cell shows: text, displays, progress, in order."""
