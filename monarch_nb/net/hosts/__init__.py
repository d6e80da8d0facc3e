"""What goes from host to host: joining, encrypted links that outlive their connections, relays."""
