"""The only modules with queries, one per noun.

Each function takes an open connection, so callers choose the transaction.
"""
