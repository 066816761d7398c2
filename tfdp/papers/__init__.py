"""The tables and figures of the four papers: what they print, what each row trains, what was measured."""
