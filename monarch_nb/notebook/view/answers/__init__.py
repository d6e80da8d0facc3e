"""What a page asks and orders, and who answers."""
