"""Holds tenants to their limits: in memory, or in a store that all gateway instances share."""
