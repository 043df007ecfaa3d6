"""Words that every actor uses: runs, slices, outcomes, states and their moves, keys, books,
clocks."""
