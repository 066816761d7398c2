"""Engines: each turns the rows of a chunk into one sum of bounded gradients (see `contract.Engine`)."""
