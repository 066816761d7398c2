"""Parts of the command `python -m tfdp.accounting`: flags, plan, table and plot."""
