"""What the decision go / no-go promises, and what it keeps."""
