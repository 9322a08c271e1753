"""Measurements against peers, on seeded data, as ratios within one run."""
