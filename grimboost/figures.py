"""What an engine counts while it lives: ended generations in sum, those that run as far as they have come.

Generations begin and end on the event loop; a snapshot can be taken in any thread, and nothing that only grows is
ever lower in it than in an earlier one. It knows no clock, and nothing of how its figures are shown.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from grimboost.actor import ActorStatistics
from grimboost.client_lane import ClientLane, Pace
from grimboost.histogram import Buckets
from grimboost.messages import FinishReason
from grimboost.statistics import EngineStatistics, Recent, Totals
from grimboost.wiring import STAGES
from grimboost.worker import Worker

if TYPE_CHECKING:
    from grimboost.generation import Generation

REQUEST_BOUNDS = (
    *(0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds of whole generations. vLLM's bounds, which dashboards expect, and three below them."""

Stages = Mapping[str, ActorStatistics]


class _State(Struct, frozen=True):
    """Replaced as a whole, so that no thread sees a generation twice or not at all."""

    running: "tuple[Generation, ...]"
    totals: Totals
    finished: Mapping[FinishReason, int]
    stages: Stages


class FigureKeeper:
    """Tell it of each generation that begins and ends."""

    def __init__(self) -> None:
        nothing = dict.fromkeys(STAGES, ActorStatistics(0, 0))
        self._state = _State((), Totals(), dict.fromkeys(FinishReason, 0), nothing)
        self.pace = Pace()
        self._requests = Buckets(REQUEST_BOUNDS)
        self._recent = Recent()

    def began(self, generation: "Generation") -> None:
        """It runs from now on."""
        state = self._state
        self._state = _State((*state.running, generation), state.totals, state.finished, state.stages)

    def ended(self, generation: "Generation") -> None:
        """It is over, and its counts are what they will be."""
        state = self._state
        reason = generation.reason
        self._state = _State(
            tuple(one for one in state.running if one is not generation),
            state.totals.with_generation(generation.counts),
            {**state.finished, reason: state.finished[reason] + 1},
            _sum(state.stages, generation.stages()),
        )
        self._recent.add(generation.lane)
        self._requests.add(_seconds(generation.lane))

    def statistics(
        self, open_slots: int, target: Worker, drafter: Worker | None, spreads: bool = True
    ) -> EngineStatistics:
        """As far as everything has come. Without `spreads` it takes microseconds."""
        state = self._state
        stages = state.stages
        for generation in state.running:
            stages = _sum(stages, generation.stages())
        return EngineStatistics(
            len(state.running),
            open_slots,
            target.statistics(),
            drafter.statistics() if drafter else None,
            state.totals,
            stages,
            state.finished,
            self.pace.first.snapshot(),
            self.pace.between.snapshot(),
            self._requests.snapshot(),
            **(self._recent.spreads() if spreads else {}),
        )


def _sum(one: Stages, other: Stages) -> Stages:
    return {name: figures.plus(other[name]) for name, figures in one.items()}


def _seconds(lane: ClientLane) -> float:
    return (lane.ended or lane.now()) - lane.begun
