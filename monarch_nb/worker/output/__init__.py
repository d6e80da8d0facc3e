"""What a rank shows: standard streams, progress bars, widgets, metrics."""
