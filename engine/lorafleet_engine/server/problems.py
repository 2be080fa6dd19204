"""RFC 9457 problem documents of the admin and state ports: the one place that knows which code has which status."""

from starlette.responses import Response

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_engine.errors import JobError

STATUS = {
    ProblemCode.INVALID_REQUEST: 400,
    ProblemCode.UNAUTHORIZED: 401,
    ProblemCode.NOT_FOUND: 404,
    ProblemCode.SOURCE_UNREACHABLE: 502,
    ProblemCode.SOURCE_FORBIDDEN: 422,
    ProblemCode.SOURCE_DENIED: 502,
    ProblemCode.CREDENTIALS_UNUSABLE: 422,
    ProblemCode.SIGNATURE_REFUSED: 422,
    ProblemCode.DIGEST_MISMATCH: 409,
    ProblemCode.BASE_MISMATCH: 409,
    ProblemCode.DOES_NOT_FIT: 413,
    ProblemCode.UNSUPPORTED_ADAPTER: 422,
    ProblemCode.LOADER_BUSY: 503,
    ProblemCode.DRAINING: 503,
    ProblemCode.MERGED: 409,
    ProblemCode.INTERNAL: 500,
}


def make_problem(code: ProblemCode, detail: str, reasons: tuple[str, ...] = ()) -> Problem:
    """The document for a code."""
    title = code.value.replace("_", " ").capitalize()
    return Problem(title=title, status=STATUS[code], code=code, detail=detail, reasons=list(reasons))


def problem_of(error: JobError) -> Problem:
    """The document for a failed job."""
    return make_problem(error.code, error.message, error.reasons)


def answer_problem(problem: Problem) -> Response:
    """The HTTP answer that carries a document."""
    return Response(
        problem.model_dump_json(by_alias=True, exclude_none=True), problem.status, media_type="application/problem+json"
    )


def refuse_token() -> Response:
    """The answer to a request without an accepted token."""
    response = answer_problem(make_problem(ProblemCode.UNAUTHORIZED, "a bearer token of this port is needed"))
    response.headers["www-authenticate"] = "Bearer"
    return response
