"""The owner of the journal: intake, leases, marks, staged writes, and the books of what is on
disk."""
