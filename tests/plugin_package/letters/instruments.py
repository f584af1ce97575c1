"""An instrument: how many rows the target's passes had, and how long it was busy."""

import sys


class Passes:
    def __init__(self):
        self.passes = self.rows = 0
        self.seconds = 0.0

    def batch(self, batch):
        if batch.worker == "target":
            self.passes += 1
            self.rows += sum(len(getattr(work.request, "tokens", ())) for work in batch.work)
            self.seconds += batch.end - batch.begin

    def generation_ended(self, generation):
        print(f"{self.passes} batches, {self.rows} rows, busy for {self.seconds:.2f} s", file=sys.stderr)
