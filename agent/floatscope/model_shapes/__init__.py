"""Shapes of a transformer as read from its configuration: what preflight checks and what a plan adds up."""
