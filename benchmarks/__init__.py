"""Benchmarks of private training: step time and peak memory of tfdp and its peers. See README.md."""
