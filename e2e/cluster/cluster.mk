# The local cluster and the images that run in it. KUBECONFIG, when set, is used instead of a local cluster; images are
# then pushed to REGISTRY.
EXTRAS := operator gateway engine dev
COMPILE = $(BIN)/uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --python-version 3.11

.PHONY: cluster-up cluster-down images binaries-apiserver lock

cluster-up: ## Give a Ready two-node Kubernetes on this machine (needs root; or verify the one of KUBECONFIG)
	@python3 -m e2e.cluster up

cluster-down: ## Remove the local cluster; binaries, images and assets stay cached
	@python3 -m e2e.cluster down

images: assets ## Build all images and bring them into the cluster
	@python3 -m e2e.cluster images

binaries-apiserver:
	@python3 -m e2e.cluster binaries etcd kube-apiserver kubectl helm kstatus actionlint

lock: $(STAMP) ## Resolve pyproject.toml into requirements/*.lock; versions already there are kept
	for extra in $(EXTRAS); do $(COMPILE) --extra $$extra --output-file requirements/$$extra.lock pyproject.toml; done
	printf 'torch\ntriton\n' | $(COMPILE) --constraint requirements/engine.lock --output-file requirements/torch.lock -
	printf 'starlette\nuvicorn\n' \
	  | $(COMPILE) --constraint requirements/engine.lock --output-file requirements/assets.lock -
