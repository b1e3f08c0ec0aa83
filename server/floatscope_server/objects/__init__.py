"""Tiles outside the database: an S3-compatible store that keeps them, and the thread that deletes there."""
