"""How long a log of a million steps takes, beside other log linters on the same file."""
