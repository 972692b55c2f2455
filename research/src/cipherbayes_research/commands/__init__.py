"""Commands that `cipherbayes` shows where this package is installed."""
