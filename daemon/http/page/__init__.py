"""The Queue Metrics page: templates, what they show at first, the files that a browser loads."""
