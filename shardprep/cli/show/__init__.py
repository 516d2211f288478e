"""Tables, bars and plain lines for a terminal; every text passes the one console."""
