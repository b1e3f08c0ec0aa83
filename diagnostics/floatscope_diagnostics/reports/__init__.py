"""What people read: the terminal report, the page, the summary for a CI job."""
