"""Sends notifications: to webhooks and to queues."""
