"""What the research distribution depends on: the product, in the same version.

It uses the product's own parts, not only its public names.
"""

import re
from pathlib import Path

from setuptools import setup

text = Path("src/cipherbayes_research/version.py").read_text(encoding="utf-8")
(version,) = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)

setup(install_requires=[f"cipherbayes=={version}"])
