#!/usr/bin/env python3
"""Windows by switches, in one process.  usage: trial_windows.py LIBRARY [ROUNDS]"""
import os
import random
import statistics
import sys
from dataclasses import replace

import torch

import portable

SWITCHES = {
    ("hopper", "forward"): [{}, {"FIRST": 1}, {"FIRST": 2}, {"FIRST": 3}],
    ("hopper", "backward"): [{}, {"CLEAR": 0}, {"LATE": 1}, {"CLEAR": 0, "LATE": 1}, {"CLEAR": 4}, {"CLEAR": 17}],
    ("portable", "forward"): [{}, {"EDGES": 1}, {"EDGES": 2}, {"EDGES": 4}, {"EDGES": 8}, {"EDGES": 15}],
}
NAMES = ("FIRST", "CLEAR", "LATE", "EDGES")


def switch(values):
    for name in NAMES:
        os.environ.pop(f"LETHE_TRIAL_{name}", None)
    for name, value in values.items():
        os.environ[f"LETHE_TRIAL_{name}"] = str(value)


def main():
    torch.ops.load_library(sys.argv[1])
    rounds, length, device = int(sys.argv[2]) if len(sys.argv) > 2 else 9, 16384, "cuda"
    for family, dim in (("hopper", 128), ("portable", 64), ("hopper", 64), ("portable", 128)):
        full = portable.Call(family, dim)
        window = replace(full, window=length // 8)
        sets = [portable.Inputs(full, 1, length, portable.WIDTH // dim, device, 1 + i) for i in range(2)]
        sides = [portable.Side("window", window, sets), portable.Side("full", full, sets)]
        switch({})
        with torch.no_grad():
            share = [float(side.call(sets[0], with_statistics=True)[2].sum()) for side in sides]
        share = share[0] / share[1]
        for side in sides:
            side.prepare()
        for direction in portable.DIRECTIONS:
            variants = SWITCHES.get((family, direction), [{}])
            cases = [(sides[0], v) for v in variants] + [(sides[1], {})]
            call = lambda case: getattr(case[0], direction)
            results = []
            for case in cases[:-1]:  # results of each, and again
                switch(case[1])
                once, again = ([x.detach().clone() for x in (r if isinstance(r, tuple) else (r,))] for r in (call(case)(0), call(case)(0)))
                results.append(once)
                case[1]["same"] = all(torch.equal(a, b) for a, b in zip(once, again))
            times = {i: [] for i in range(len(cases))}
            for r in range(rounds + 1):
                for i in random.sample(range(len(cases)), len(cases)):
                    switch({k: v for k, v in cases[i][1].items() if k in NAMES})
                    t = portable.milliseconds(call(cases[i]), 4, device)
                    if r:
                        times[i].append(t)
            for i, (side, values) in enumerate(cases[:-1]):
                ratios = [t / (share * f) for t, f in zip(times[i], times[len(cases) - 1])]
                far = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(results[i], results[0]))
                shown = {k: v for k, v in values.items() if k in NAMES}
                print(f"{family:8} {dim:4} {direction:8} {str(shown):24} {statistics.median(times[i]):8.4f} ms, full {statistics.median(times[len(cases) - 1]):8.4f}, "
                      f"ratio {statistics.median(ratios):6.4f} ± {statistics.stdev(ratios):6.4f}, off the first {far:7.1e}, twice equal {values['same']}", flush=True)
        switch({})


if __name__ == "__main__":
    main()
