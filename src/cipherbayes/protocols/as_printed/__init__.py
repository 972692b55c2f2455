"""The paper's own method: Algorithms 3, 4 and 5. Not certified."""

from cipherbayes.protocols.as_printed.protocol import AsPrinted

PROTOCOL = AsPrinted()
