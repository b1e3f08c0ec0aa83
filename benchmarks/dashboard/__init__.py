"""What a reader of the dashboard waits for, in a real browser."""
