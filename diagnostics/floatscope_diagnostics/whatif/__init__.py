"""What another number format would do to a tensor, from its stored statistics."""
