# Placement against hashing and all-on-all. RECORD=1 keeps figures and chart in docs; the last line of output is JSON.
.PHONY: bench-placement
bench-placement: $(STAMP) ## Compare cold loads, peaks and moves of placement by popularity with hashing and all-on-all
	@$(BIN)/python -m e2e.placement $(if $(RECORD),--record docs/benchmarks/placement.json --chart docs/benchmarks/placement.svg)
