"""Commands that ``cipherbayes`` has where this package is installed."""
