"""A rule whose variances fall from round to round is named once; a mean of posteriors never is."""

import math

import pytest
import torch
from flwr.app import ArrayRecord
from small_apps import moving

import strategies
from fedbary.aggregation import RULES
from server_app.engine.inline import InlineGrid

PRODUCTS = {"Conflation", "WeightedConflation", "GAA"}


def lines_of(rule, monkeypatch, widened, rounds=5, clients=4):
    """What a strategy says where clients add to the log-variances they are sent."""
    lines = []

    def widen(state, k, _):
        return {**state, "w_log_var": state["w_log_var"] + widened * (1 + 0.1 * k)}

    monkeypatch.setattr(
        "strategies.narrowing.log", lambda _, text, *args: lines.append(text % args)
    )
    strategy = getattr(strategies, rule)(fraction_evaluate=0.0)
    start = {"w_mean": torch.zeros(50), "w_log_var": torch.full((50,), -6.0)}
    strategy.start(InlineGrid(moving(widen), clients, {}), ArrayRecord(start), num_rounds=rounds)
    return lines


@pytest.mark.parametrize("rule", sorted({"RKLB", "WB", "EAA", "HB", "FKLB", "AALV"} | PRODUCTS))
def test_rules_that_narrow_further_than_clients_widen_are_named_once(rule, monkeypatch):
    """Four clients widen by half: a product of four is narrower by a factor of four."""
    lines = lines_of(rule, monkeypatch, widened=0.5)
    assert len(lines) == (rule in PRODUCTS)
    assert all(rule in line and "DWC" in line for line in lines)


def test_clients_that_narrow_themselves_or_widen_enough_are_no_fault_of_the_rule(monkeypatch):
    assert lines_of("Conflation", monkeypatch, widened=-0.5) == []
    assert lines_of("Conflation", monkeypatch, widened=math.log(4) + 0.5) == []


def test_two_rounds_are_no_course(monkeypatch):
    assert lines_of("Conflation", monkeypatch, widened=0.5, rounds=2) == []


def test_the_products_are_rules():
    assert PRODUCTS < set(RULES)
