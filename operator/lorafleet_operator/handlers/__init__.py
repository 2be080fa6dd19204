"""When things are done: kopf's events, reflector events and the clock wake one task per pool. No HTTP, no decisions."""
