"""What schemathesis must not ask, and what it cannot know."""

import os
from typing import Any

import schemathesis

ADMIN = bool(os.environ.get("DORMOUSE_ADMIN_PORT_IS_ASKED"))
#: Nobody listens there.
ENDPOINT = "http://127.0.0.1:9/"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A poll waits a second at most, push calls nobody, and the public port is asked for a namespace that is there."""
    if case.query and "timeout" in case.query:
        case.query["timeout"] = 1
    if isinstance(case.body, dict) and "url" in case.body:
        case.body["url"] = ENDPOINT
    parameters = case.path_parameters
    if not ADMIN and parameters and "namespace" in parameters:
        parameters["namespace"] = "fuzz"
        case.headers["X-Token"] = os.environ["DORMOUSE_TOKEN"]


@schemathesis.check
def a_500_of_ours(context: Any, response: Any, case: Any) -> None:
    """lmstfy answers 500 to a limit that is there already, and so do we. There is no other."""
    known = case.method == "POST" and case.path.endswith("/limit")
    if response.status_code == 500 and not known:
        raise AssertionError(f"500: {response.text[:300]}")
