"""CKKS: the encrypted update's circuits, from keys to decrypted values."""
