"""Handlers with presets, for tests."""

from typing import Any

from actors.config.http import HttpHandler
from actors.config.presets import with_preset


def handler_with(preset: str, url: str = "https://api.example/", **keys: Any) -> HttpHandler:
    """What `handler: {preset: …, url: …}` means in a configuration."""
    queue = with_preset({"handler": {"preset": preset, "url": url, **keys}}, None)
    return HttpHandler.model_validate(queue["handler"])
