"""What ranks have written, shown, measured and failed with."""
