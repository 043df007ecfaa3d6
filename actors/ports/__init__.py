"""What actors need from outside: the journal, the warm and the cold tier, handlers, threads."""
