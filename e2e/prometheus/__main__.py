"""`python -m e2e.prometheus`: bring Prometheus and promtool into the cache."""

from e2e.cluster.paths import find_cache
from e2e.prometheus.package import fetch_missing

fetch_missing(find_cache())
