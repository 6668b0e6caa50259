"""Numbers on devices that travel to the host together: the host waits once, however many they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Expected", "Reading"]


class Reading:
    """Collects numbers; the first that somebody wants to know brings all of them."""

    def __init__(self) -> None:
        """Begin with nothing to read."""
        self._waiting: list[Expected] = []

    def expect(self, numbers: Sequence[Tensor]) -> "Expected":
        """Return a promise of numbers, each a tensor of one entry without dimensions.

        Those that are here already need no journey.
        """
        promised = Expected(self, numbers)
        if all(number.is_cpu for number in numbers):
            promised.found = [float(number) for number in numbers]
        else:
            self._waiting.append(promised)
        return promised

    def read(self) -> None:
        """Bring all numbers that are expected, in one transfer from each device."""
        waiting, self._waiting = self._waiting, []
        by_device: dict[torch.device, list[Expected]] = {}
        for one in waiting:
            if one.numbers:
                by_device.setdefault(one.numbers[0].device, []).append(one)
        for alike in by_device.values():
            found = torch.stack([number for one in alike for number in one.numbers]).tolist()
            for one in alike:
                one.found, found = found[: len(one.numbers)], found[len(one.numbers) :]


class Expected:
    """Numbers that are on their way."""

    def __init__(self, reading: Reading, numbers: Sequence[Tensor]) -> None:
        """Note what a reading is to bring."""
        self.numbers = numbers
        self.found: list[float] | None = None if numbers else []
        self._reading = reading

    def get(self) -> list[float]:
        """Return the numbers; wait for them if nobody has."""
        if self.found is None:
            self._reading.read()
            self.numbers = ()
        assert self.found is not None
        return self.found
