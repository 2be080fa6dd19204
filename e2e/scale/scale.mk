# The operator under many adapters. The bar is 1,000 on 20; `ADAPTERS=10000 ENGINES=100` is what is reported beside it.
# RECORD=docs/benchmarks/operator.jsonl keeps the result.
ADAPTERS ?= 1000
ENGINES ?= 20

.PHONY: bench-operator
bench-operator: $(STAMP) binaries-apiserver ## How fast and with how many writes the operator brings ADAPTERS on ENGINES to Ready
	@$(BIN)/python -m e2e.scale --adapters $(ADAPTERS) --engines $(ENGINES) $(if $(RECORD),--record $(RECORD))
