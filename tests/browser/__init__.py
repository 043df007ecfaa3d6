"""The Queue Metrics page in a real Chromium, beside a real daemon."""
