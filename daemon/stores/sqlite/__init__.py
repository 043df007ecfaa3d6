"""The cold tier: where runs wait that warm has no room for, and where dead letters lie."""
