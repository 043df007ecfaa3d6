"""The journal on disk: chunks of blocks, marks and indexes, and their recovery."""
