"""Readers of training logs: one file a format, chosen by content. Nothing they read is trusted; memory is
bounded."""
