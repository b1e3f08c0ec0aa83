"""Synthetic training curves, healthy and with every symptom, and how the diagnosis does on them."""
