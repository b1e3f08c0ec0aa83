"""What a flight recorder says, beside the diagnosis of its steps."""
