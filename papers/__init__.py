"""The tables and figures of the papers, and tables of our own, beside our measurements."""
