"""The tree in which a controller reaches many hosts over few links."""
