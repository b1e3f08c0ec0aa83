"""What GPUs can do at most, as a table with sources."""
