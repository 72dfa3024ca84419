"""Claims about fleet/devices.toml: each card is told from its neighbours by what nvidia-smi prints."""

from __future__ import annotations

import pytest

from amk_bench.fleet import devices
from amk_bench.fleet.devices import FleetError
from amk_core.machine import Gpu, parse_smi, visible
from amk_core.targets import Target

KNOWN = devices.known()


def gpu(line: str) -> Gpu:
    (found,) = parse_smi(line)
    return found


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("NVIDIA L4, 8.9, 23034, 580.1, GPU-1", "l4"),
        ("NVIDIA L40S, 8.9, 46068, 580.1, GPU-1", "l40s"),
        ("NVIDIA A10G, 8.6, 23028, 580.1, GPU-1", "a10g"),
        ("NVIDIA A100-SXM4-40GB, 8.0, 40960, 580.1, GPU-1", "a100"),
        ("NVIDIA A100-SXM4-80GB, 8.0, 81920, 580.1, GPU-1", "a100"),
        ("NVIDIA A100 80GB PCIe, 8.0, 81920, 580.1, GPU-1", "a100"),
        ("NVIDIA H100 80GB HBM3, 9.0, 81559, 580.1, GPU-1", "h100"),
        ("NVIDIA H100 PCIe, 9.0, 81559, 580.1, GPU-1", "h100"),
        ("NVIDIA H200, 9.0, 143771, 580.1, GPU-1", "h200"),
        ("NVIDIA GeForce RTX 5090, 12.0, 32607, 580.1, GPU-1", "rtx5090"),
        ("NVIDIA L40, 8.9, 46068, 580.1, GPU-1", None),
        ("NVIDIA A10, 8.6, 23028, 580.1, GPU-1", None),
        ("NVIDIA GH200 480GB, 9.0, 97871, 580.1, GPU-1", None),
        ("NVIDIA H100 80GB HBM3, 9.0, 9856, 580.1, GPU-1", None),  # a slice of one
        ("NVIDIA GeForce RTX 5090 D, 12.0, 32607, 580.1, GPU-1", None),
        ("NVIDIA GeForce RTX 5090 Laptop GPU, 12.0, 24463, 580.1, GPU-1", None),
        ("NVIDIA H200, 9.0, 143771, 580.1", "h200"),
    ],
)
def test_a_card_is_recognised_by_name_architecture_and_memory(line: str, key: str | None) -> None:
    found = devices.recognise(gpu(line), KNOWN)
    assert (found.key if found else None) == key


def test_the_table_has_the_seven_cards_that_schedules_are_lowered_for() -> None:
    assert {(d.profile, d.arch) for d in KNOWN.values()} == {(t.name, t.arch) for t in Target.profiles()}
    assert list(KNOWN) == ["l4", "l40s", "a10g", "a100", "h100", "h200", "rtx5090"]
    assert len({d.resource for d in KNOWN.values()}) == len({d.label for d in KNOWN.values()}) == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x", "Expected ']'"),
        ('[x]\narch = "sm_90"', "memory_gib, names, profile, sold_as"),
        ('["X Y"]\narch="a"\nnames=["n"]\nmemory_gib=[1,2]\nsold_as=""\nprofile=""', "small letters"),
        ('[cpu]\narch="a"\nnames=["n"]\nmemory_gib=[1,2]\nsold_as=""\nprofile=""', "other than cpu"),
        ('[x]\narch="a"\nnames=["n"]\nmemory_gib=[3,2]\nsold_as=""\nprofile=""', "least and most"),
        ('[x]\narch="a"\nnames=[]\nmemory_gib=[1,2]\nsold_as=""\nprofile=""', "names is empty"),
    ],
)
def test_a_wrong_table_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        devices.parse(text)


def test_two_devices_that_a_card_fits_are_an_error() -> None:
    twice = devices.parse("".join(f'[{k}]\narch="sm_90"\nnames=["C"]\nmemory_gib=[1,99]\nsold_as=""\nprofile=""\n' for k in "xy"))
    with pytest.raises(FleetError, match="x and y"):
        devices.recognise(gpu("C, 9.0, 20000, 580.1, GPU-1"), twice)


def test_what_is_asked_for() -> None:
    assert devices.chosen(["h200", "l4", "h200"], KNOWN) == ["h200", "l4"]
    assert devices.chosen(["all", "cpu"], KNOWN) == [*KNOWN, "cpu"]
    with pytest.raises(FleetError, match="no device named 'h300'; there are l4"):
        devices.chosen(["h300"], KNOWN)


def test_a_node_offers_one_unit_a_card() -> None:
    two = parse_smi(
        "NVIDIA H200, 9.0, 143771, 580.1, GPU-1\nNVIDIA H200, 9.0, 143771, 580.1, GPU-2\nNVIDIA L40, 8.9, 46068, 580.1, GPU-3"
    )
    line = devices.ray_start(two, KNOWN, "10.0.0.1:6379")
    assert line == "ray start --address=10.0.0.1:6379 --num-gpus=0 '--resources={\"amk_h200\": 2}' --labels=amk/device=h200"


def test_cards_that_a_process_may_not_use_are_not_there_for_it() -> None:
    cards = parse_smi("A, 9.0, 1000, 1, GPU-aa\nB, 9.0, 1000, 1, GPU-bb\nC, 9.0, 1000, 1, GPU-cc")
    names = [
        (said, "".join(g.name for g in visible(cards, said))) for said in ("", "2,0", "GPU-bb", "GPU-b,1,0", "-1", "0,7,1", "GPU-")
    ]
    assert names == [("", ""), ("2,0", "CA"), ("GPU-bb", "B"), ("GPU-b,1,0", "B"), ("-1", ""), ("0,7,1", "A"), ("GPU-", "")]
