"""Benchmarks and the demonstration. Nothing in forebay imports it."""
