"""The parties as plain objects: message in, message out."""
