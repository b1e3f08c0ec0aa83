"""The server: HTTP, storage, live diagnosis, alerts and notifications."""
