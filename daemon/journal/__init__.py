"""The journal on disk: chunks of blocks, marks, indexes, and how they are read again."""
