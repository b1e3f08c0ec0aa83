"""The OpenAPI document: one place for what every answer looks like."""
