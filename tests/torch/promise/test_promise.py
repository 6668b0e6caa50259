"""No sequence of calls ruins a model: the state machine, as a test."""

import os

from hypothesis import HealthCheck, settings

from tests.torch.promise.machine import PromiseMachine

# Where nothing is set, always the same examples: what a long run would find is no reason for a red test
# in somebody else's change.
ASKED = os.environ.get("PESKY_PROMISE_EXAMPLES")

TestPromise = PromiseMachine.TestCase
TestPromise.settings = settings(
    max_examples=int(ASKED or 120),
    derandomize=ASKED is None,
    database=None,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
