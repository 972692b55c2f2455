"""The study file: its fields, rules, template and tables."""
