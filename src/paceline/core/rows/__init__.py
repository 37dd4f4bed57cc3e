"""Rows of the table of disciplines, by where they come from."""
