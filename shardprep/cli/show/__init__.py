"""Tables, bars and lines for a terminal."""
