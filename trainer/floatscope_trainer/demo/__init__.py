"""`floatscope demo`: healthy and faulty runs trained live against a server, and what it found."""
