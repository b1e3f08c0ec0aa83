"""Fetches runs from a server as logs."""
