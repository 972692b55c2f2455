"""The version of both distributions: the research package has a link to this file."""

__version__ = "0.3.0.dev0"
