"""Tables, and their preparation from public knowledge."""
