"""Formats of text logs, one file each."""
