"""A pool of 7B engines and many teams on it, as files that `lorafleet plan` reads. Called by tests."""

from pathlib import Path

POOL = """
apiVersion: lorafleet.io/v1alpha1
kind: LoraPool
metadata: {name: qwen, namespace: serving}
spec:
  baseModel: {name: BASE, source: {uri: "http://assets/base"}}
  engine: {pod: {resources: {limits: {"nvidia.com/gpu": "1"}}}}
  replicas: {min: 2}
  allowedNamespaces: {from: All}
  sources: {allow: [{prefix: "http://assets/"}]}
"""
TEAM = """
apiVersion: lorafleet.io/v1alpha1
kind: LoraAdapter
metadata: {name: tuned, namespace: team-NUMBER}
spec: {poolRef: {name: qwen, namespace: serving}, source: {uri: "http://assets/NUMBER"}}
---
apiVersion: lorafleet.io/v1alpha1
kind: Tenant
metadata: {name: acme, namespace: team-NUMBER}
spec: {poolRef: {name: qwen, namespace: serving}, adapters: {names: [tuned]}}
"""


def write_teams(folder: Path, teams: int = 3, base: str = "qwen2.5-7b") -> Path:
    """Write the manifests of a pool and of teams with one adapter and one tenant each; returns the folder."""
    texts = [POOL.replace("BASE", base), *(TEAM.replace("NUMBER", f"{number:02d}") for number in range(teams))]
    (folder / "all.yaml").write_text("---".join(texts))
    return folder
