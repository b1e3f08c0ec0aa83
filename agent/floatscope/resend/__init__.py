"""Delivering later what a run could not deliver while it lived: ``floatscope resend``."""
