"""The gateway's decisions: who is calling, what the name means, which replica answers. Pure: no clock, no I/O."""
