"""The `http` handler: sends requests over persistent connections and interprets the answers."""
