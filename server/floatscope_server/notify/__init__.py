"""Tells people: what a message says, where it may go, and when it is sent again."""
