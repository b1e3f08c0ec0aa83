"""What the server measures of itself, for Prometheus."""
