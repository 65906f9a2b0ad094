"""One step, in this process: `python -m bench.hour JOB`, where JOB is a Job's fields in JSON."""

import json
import sys
from pathlib import Path

from bench.hour.job import Job, Skip
from bench.hour.steps import STEPS


def main() -> None:
    given = json.loads(sys.argv[1])
    name = given.pop("step")
    (step,) = [each for each in STEPS if each.name == name]
    given |= {name: Path(given[name]) for name in ("notes", "folder", "models")}
    job = Job(**given)
    try:
        step.function()(job)
    except Skip as why:
        job.skipped(str(why))


if __name__ == "__main__":
    main()
