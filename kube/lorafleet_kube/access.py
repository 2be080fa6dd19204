"""Where the API server is and how we prove who we are. Called once at start-up; sends nothing itself."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from lorafleet_kube.errors import AccessError

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Access:
    """An API server's address and credentials; tokens of a service account are re-read as they rotate."""

    configuration: Configuration

    @property
    def server(self) -> str:
        """Base URL without a trailing slash."""
        return str(self.configuration.host).rstrip("/")

    def tls(self) -> ssl.SSLContext:
        """The server's CA and, where the kubeconfig has one, the client certificate."""
        settings = self.configuration
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def headers(self) -> dict[str, str]:
        """The Authorization header, when the credentials are a token."""
        value = await self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"authorization": value} if value else {}


async def load_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Read `kubeconfig`, else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises AccessError when none of them is usable.
    """
    configuration = Configuration()
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")  # the package reads the variable only when imported
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
    except (kube_config.ConfigException, OSError) as error:
        raise AccessError(f"no usable kubeconfig or service account: {error}") from error
    return Access(configuration)


def default_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """The namespace that kubectl would take: of the context, else of the pod's service account, else `default`.

    Raises AccessError for an unusable kubeconfig.
    """
    kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _ACCOUNT_NAMESPACE.read_text().strip() if _ACCOUNT_NAMESPACE.is_file() else "default"
    try:
        contexts, active = kube_config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
    except (kube_config.ConfigException, OSError) as error:
        raise AccessError(f"no usable kubeconfig or service account: {error}") from error
    chosen = next((each for each in contexts if each["name"] == context), {}) if context else active or {}
    return str(chosen.get("context", {}).get("namespace") or "default")
