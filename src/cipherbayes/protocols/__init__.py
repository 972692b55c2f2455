"""The parties as plain objects, message in and message out; one folder a protocol.

Each folder exports its descriptor, ``PROTOCOL``, which is registered here.
"""

from importlib import import_module
from pkgutil import iter_modules

from cipherbayes.protocols.protocol import register

for _found in iter_modules(__path__, f"{__name__}."):
    if _found.ispkg:
        register(import_module(_found.name).PROTOCOL)
