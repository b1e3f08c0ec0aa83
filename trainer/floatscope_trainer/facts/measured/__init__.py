"""One file per claim: its docstring is its text, its FACT how it is measured."""
