"""Everything that parses, fed with what nobody should send; `make fuzz` does it for longer."""
