"""One module per resource: HTTP in, a call, HTTP out."""
