"""URL paths of Kubernetes objects. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource kind; `group` is empty for the core group."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection (all namespaces without one), of one object, or of its subresource."""
        parts = ["api", self.version] if not self.group else ["apis", self.group, self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)


NAMESPACES = Kind("", "v1", "namespaces")
SECRETS = Kind("", "v1", "secrets")
CONFIG_MAPS = Kind("", "v1", "configmaps")
NODES = Kind("", "v1", "nodes")
PODS = Kind("", "v1", "pods")
ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1", "endpointslices")
