"""Games: TextArena's envs made safe to interleave, bounded, seeded and read by seat."""
