"""How much one client may ask for, and how much the server does at once."""
