"""All tables in one place, every total noised."""
