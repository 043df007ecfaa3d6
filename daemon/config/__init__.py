"""Reading the configuration: YAML, environment and flags, with the place of every problem."""
