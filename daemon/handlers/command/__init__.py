"""The `command` handler: items on a program's standard input."""
