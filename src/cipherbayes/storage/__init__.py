"""How a party keeps its files: private, written whole, old copies recognised."""
