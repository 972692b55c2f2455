"""Bounded contributions, exact noise, accounting, and each table's ledger."""
