"""Settings of the daemon and of queues; the catalogue of the queues in force."""
