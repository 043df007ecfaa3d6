"""Schedules and triggers: what makes items at given times or out of other items."""
