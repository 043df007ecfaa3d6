"""The Queue Metrics page: templates, their first contents, the files that a browser loads."""
