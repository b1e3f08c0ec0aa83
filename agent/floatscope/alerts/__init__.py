"""Alerts of a server at the command line."""
