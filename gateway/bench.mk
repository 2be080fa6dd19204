# What Envoy and the picker add to a request, on this machine; the last line of output is JSON.
.PHONY: bench-gateway
bench-gateway: $(STAMP) envoy-binary ## Time Envoy + picker against direct requests, interleaved; prints one line of JSON
	@PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(BIN)/python -m tests.gateway.bench
