"""The tables and figures of the four papers: what they print, and what was measured."""
