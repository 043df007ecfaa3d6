"""The command `forebay`. A module here imports the standard library and typer when it is loaded,
and everything else inside its commands, so that `--help` and completion answer at once."""
