"""The command `forebay`. At load time its modules import only the standard library and typer; each
command imports the rest when it runs, so that `--help` and completion answer at once."""
