"""Everything that can go wrong in the operator, in one tree; each error is translated once, where it leaves the shell.

OperatorError
├── SettingsError           an environment variable is missing or makes no sense: the process can't start
├── NotLeadingError         a write was refused by our own fence: another process may lead
└── EngineError             a call of an engine's port failed; `problem` says how
    ├── CredentialsError         the Secret with a source's credentials cannot be used
    ├── EngineUnreachableError   no answer, or none in time
    └── EngineRefusedError       a problem document
"""

from lorafleet_contracts.admin import Problem, ProblemCode


class OperatorError(Exception):
    """Root of the operator's errors."""


class SettingsError(OperatorError):
    """An environment variable is missing or makes no sense."""


class NotLeadingError(OperatorError):
    """The Lease is not (or no longer surely) ours, so nothing may be written."""


class EngineError(OperatorError):
    """A call of an engine's port failed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail or problem.title}")
        self.problem = problem


class CredentialsError(EngineError):
    """The engine was not called: the Secret with the source's credentials cannot be used."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            Problem(
                title="the credentials cannot be used", status=422, code=ProblemCode.CREDENTIALS_UNUSABLE, detail=detail
            )
        )


class EngineUnreachableError(EngineError):
    """The engine gave no answer, or none in time."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            Problem(title="the replica did not answer", status=503, code=ProblemCode.INTERNAL, detail=detail)
        )


class EngineRefusedError(EngineError):
    """The engine answered with a problem document."""
