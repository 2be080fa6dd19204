"""The gateway's input and output: watches, state ports, Envoy's files, the ext_proc server. Decides nothing."""
