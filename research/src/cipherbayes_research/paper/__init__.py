"""The paper's figures and tables, run again, and our own beside them."""
