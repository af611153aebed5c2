"""Keeps the answers that schemathesis asks for short; loaded by it, see conformance.py."""

import schemathesis

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        # A name made up would be refused before anything else is looked at.
        body.pop("model", None)
        body.update({key: 2 for key in LIMITS})
        if isinstance(body.get("options", {}), dict):
            body["options"] = {**body.get("options", {}), "num_predict": 2}
    return body
