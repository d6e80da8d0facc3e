"""What stacks and collectives of many ranks say together."""
