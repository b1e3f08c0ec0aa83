"""Symptoms that only a whole curve shows: a bounded summary of every scalar, and tests of its shape."""
