"""kubectl against a bare API server that has the CRDs."""

from tests.chart.conftest import kubectl, render

__all__ = ["kubectl", "render"]
