"""From snapshots to messages for a page."""
