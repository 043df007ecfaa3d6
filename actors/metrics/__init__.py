"""The books of all stores together, snapshots, samples and forecasts."""
