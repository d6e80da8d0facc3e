"""What a rank tells of itself while it works."""
