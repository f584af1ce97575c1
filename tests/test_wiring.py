"""The wiring table: no set of full mailboxes can wait for each other, and nothing is sent into the void (D6)."""

import ast
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import get_args

import pytest

from grimboost import messages as m
from grimboost.stages import cascade, drafter, gate, revealer, verifier
from grimboost.wiring import (
    CASCADE,
    CLIENT,
    DRAFTER,
    DRAFTER_WORKER,
    EDGES,
    ENGINE,
    GATE,
    REVEALER,
    STAGES,
    TARGET_WORKER,
    VERIFIER,
    Edge,
    routes,
)

INPUTS = {
    DRAFTER: m.DrafterInput,
    GATE: m.GateInput,
    VERIFIER: m.VerifierInput,
    CASCADE: m.CascadeInput,
    REVEALER: m.RevealerInput,
    CLIENT: m.ClientEvent,
}
MODULES: dict[str, ModuleType] = {
    DRAFTER: drafter,
    GATE: gate,
    VERIFIER: verifier,
    CASCADE: cascade,
    REVEALER: revealer,
}
NOT_SENT = {m.Elapsed, m.Taken}  # the shell's own


def blocking_cycle(edges: Iterable[Edge]) -> list[str] | None:
    """A round trip over edges whose sends block, or None."""
    onward: dict[str, set[str]] = {}
    for edge in edges:
        if edge.blocks:
            onward.setdefault(edge.sender, set()).add(edge.receiver)

    def walk(path: list[str]) -> list[str] | None:
        for receiver in sorted(onward.get(path[-1], ())):
            if receiver in path:
                return [*path[path.index(receiver) :], receiver]
            found = walk([*path, receiver])
            if found:
                return found
        return None

    return next((found for sender in sorted(onward) if (found := walk([sender]))), None)


def sent_by(module: ModuleType) -> set[type[m.Message]]:
    """Messages that a stage's source makes as `m.Name(...)`; patterns (`case m.Name()`) are no calls."""
    names = {
        node.func.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "m"
    }
    values = [getattr(m, name) for name in names]
    return {value for value in values if isinstance(value, type) and issubclass(value, m.Message)}


def test_D6_blocking_sends_have_no_cycle() -> None:
    assert blocking_cycle(EDGES) is None


@pytest.mark.parametrize("receiver", [DRAFTER, GATE, VERIFIER])
def test_D6_a_blocking_edge_back_from_the_cascade_would_be_found(receiver: str) -> None:
    made = (*EDGES, Edge(CASCADE, m.Committed, receiver, blocks=True))
    cycle = blocking_cycle(made)
    assert cycle is not None
    assert {CASCADE, receiver} <= set(cycle)


def test_D6_an_edge_to_oneself_would_be_found() -> None:
    assert blocking_cycle((*EDGES, Edge(GATE, m.Spans, GATE, blocks=True))) == [GATE, GATE]


def test_D6_what_goes_back_never_blocks() -> None:
    order = {name: place for place, name in enumerate((*STAGES, CLIENT))}
    for edge in EDGES:
        if edge.sender in order and edge.receiver in order and order[edge.sender] >= order[edge.receiver]:
            assert not edge.blocks, edge


def test_every_message_of_a_mailbox_has_an_edge_to_it() -> None:
    for receiver, union in INPUTS.items():
        arriving = {edge.message for edge in EDGES if edge.receiver == receiver}
        assert arriving == set(get_args(union)) - NOT_SENT, receiver


def test_every_edge_leads_to_a_known_place_and_is_there_once() -> None:
    places = {*STAGES, CLIENT, DRAFTER_WORKER, TARGET_WORKER, ENGINE}
    assert {edge.receiver for edge in EDGES} == places
    assert {edge.sender for edge in EDGES} == places - {CLIENT}
    assert len(set(EDGES)) == len(EDGES)


def test_every_message_that_travels_can_be_logged() -> None:
    assert {edge.message for edge in EDGES} | NOT_SENT == set(get_args(m.AnyMessage))


def test_every_message_type_of_the_module_travels() -> None:
    types = {value for value in vars(m).values() if isinstance(value, type) and issubclass(value, m.Message)} - {
        m.Message
    }
    assert types == set(get_args(m.AnyMessage))


@pytest.mark.parametrize("stage", STAGES)
def test_every_output_of_a_stage_has_a_route_and_every_route_is_used(stage: str) -> None:
    sent = sent_by(MODULES[stage])
    passed_on = {m.Prefilled} if stage == CASCADE else set()
    assert sent | passed_on == set(routes(stage))


def test_routes_keep_the_order_of_the_table() -> None:
    assert [edge.receiver for edge in routes(CASCADE)[m.Finished]] == [DRAFTER, GATE, VERIFIER]
    assert routes("nobody") == {}
