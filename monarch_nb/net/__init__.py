"""The only box that knows ZeroMQ: sockets, keys, the inbox thread, the pulse of links."""
