"""Suites that every implementation of a port passes, on the real store."""

import pytest

# Suites are not named test_*, and say what differed only if they are rewritten as tests are.
pytest.register_assert_rewrite(
    *(
        f"tests.conformance.{name}"
        for name in (
            "cold_claims",
            "cold_hand_over",
            "cold_leases",
            "cold_play",
            "cold_receipts",
            "cold_settling",
            "cold_stores",
            "dead_suite",
            "warm_leases",
            "warm_places",
            "warm_rig",
            "warm_scripts",
            "warm_suite",
            "warm_waits",
        )
    )
)
