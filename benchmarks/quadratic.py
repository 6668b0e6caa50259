"""How much the simulation pays for adapting: time of each method over that of a fixed rate.

Run: python benchmarks/quadratic.py
"""

from time import perf_counter

from pesky.quadratic import SGD, VSGD, NoisyQuadratic, Oracle, simulate

REPEATS = 5
METHODS = (
    SGD(0.1),
    SGD(0.1, cooling="1/t"),
    Oracle(),
    VSGD(),
    VSGD("block", blocks=(1, 1)),
    VSGD("global"),
)


def best_time(method) -> float:
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        simulate(NoisyQuadratic(curvature=[1.0, 10.0]), method, steps=1000, runs=1000)
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    times = {method.name: best_time(method) for method in METHODS}
    base = next(iter(times.values()))
    print("1000 runs x 1000 steps, 2 parameters, best of", REPEATS)
    for name, time in times.items():
        print(f"{name:12} {time:6.3f} s  {time / base:5.2f} x fixed rate")


if __name__ == "__main__":
    main()
