"""Counter-based random draws: pure functions of seed, epoch, sample and position."""
