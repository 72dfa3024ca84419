"""Attack suite of the schedule validator: seeded generators, mutations and regressions, each labelled by the exhaustive oracle."""
