"""How the operator holds up under many adapters: a real API server, the operator as a process, stub engines."""
