"""No sequence of calls ruins a model: the state machine, as a test."""

import os

from hypothesis import HealthCheck, settings

from tests.torch.promise.machine import PromiseMachine

EXAMPLES = int(os.environ.get("PESKY_PROMISE_EXAMPLES", "40"))

TestPromise = PromiseMachine.TestCase
TestPromise.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
