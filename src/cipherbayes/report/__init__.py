"""A finished run as one page that a person can read, print and send.

The page is HTML with its style and its charts inside: no script, no network.
"""
