"""Preconditioner and step computed under encryption, with noise in the gradient."""

from cipherbayes.protocols.encrypted_update.protocol import EncryptedUpdate

PROTOCOL = EncryptedUpdate()
