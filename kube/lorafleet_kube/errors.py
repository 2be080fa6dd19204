"""What can go wrong between us and the API server.

KubeError
├── AccessError        no usable kubeconfig or service account
├── UnreachableError   no answer: connection, TLS or timeout
└── ApiError           an answer that says no (`code`, `reason`, `message` of the Status object)
"""


class KubeError(Exception):
    """Root of this package's errors."""


class AccessError(KubeError):
    """No usable kubeconfig or service account."""


class UnreachableError(KubeError):
    """The API server gave no answer: connection, TLS or timeout."""


class ApiError(KubeError):
    """The API server answered with an error; `code` is the HTTP status, `reason` Kubernetes' word for it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
