"""Instruments that an engine adds by itself, where what they need is installed. Elsewhere they cost nothing."""

from grimboost.device_ranges import device_ranges
from grimboost.instruments import Instrument
from grimboost.telemetry import telemetry


def own_instruments() -> list[Instrument]:
    """OpenTelemetry spans, and NVTX ranges on CUDA; each where it can be."""
    return [found for found in (telemetry(), device_ranges()) if found is not None]
