# --- locks -----------------------------------------------------------------------------------------------------------
EXTRAS := operator gateway engine dev

.PHONY: lock
lock: ## Resolve pyproject.toml's extras into requirements/*.lock (keeps the versions already there)
	for extra in $(EXTRAS); do \
	  uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
	    --extra $$extra --output-file requirements/$$extra.lock pyproject.toml || exit 1; \
	done
