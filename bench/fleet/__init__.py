"""What a fleet does: the shared tiers, measured."""
