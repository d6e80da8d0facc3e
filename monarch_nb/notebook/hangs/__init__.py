"""What a person is told of ranks that hang."""
