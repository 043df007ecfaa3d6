"""Ways of sending notifications."""
