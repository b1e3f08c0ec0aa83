"""``floatscope db``: looks after the database of a server, running or stopped."""
