"""Files as a party keeps them: private, whole, and known again."""
