"""Tables, their preparation from public knowledge, and the example data sets."""
