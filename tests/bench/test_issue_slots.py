"""Instructions of a loop are counted on the way where nothing waits."""

from __future__ import annotations

from typing import Any

import pytest

from amk_bench import issue_slots
from amk_bench.issue_slots import Loop, codes_of, loops, weight_bytes
from amk_core.graph import GRAPH_SHAPES
from amk_core.quant import QuantFormat

LISTING = """
.L_x_0:
        /*0000*/                   LDS R0, [R1] ;
.L_x_1:
        /*0010*/                   IMMA.16832.S8.S8 R4, R4.ROW, R8.COL, RZ ;
        /*0020*/                   IMMA.16832.S8.S8 R4, R4.ROW, R8.COL, R4 ;
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R9+URZ+0x8], R2 ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   MOV R20, 0x3430 ;
        /*0060*/                   CALL.REL.NOINC `(await) ;
.L_x_2:
        /*0070*/                   BRA.DIV UR4, `(.L_x_4) ;
        /*0080*/              @!P0 BRA `(.L_x_1) ;
        /*0090*/              @!P2 BRA `(.L_x_0) ;
.L_x_3:
        /*00a0*/                   FADD R1, R1, R1 ;
        /*00b0*/               @P3 BRA `(.L_x_3) ;
.L_x_4:
        /*00c0*/                   EXIT ;
"""


def test_the_innermost_loop_with_products_is_counted_without_its_calls() -> None:
    assert list(loops(LISTING)) == [Loop(6, 2)]


def test_bytes_of_codes() -> None:
    eight, four = QuantFormat.parse("int8"), QuantFormat.parse("int4-g128")
    assert (codes_of(four, 16, True), codes_of(four, 32, False), codes_of(eight, 8, True)) == (4096, 4096, 4096)
    assert (codes_of(eight, 64, False, 16), codes_of(QuantFormat.parse("int8-a8"), 8, False, 16)) == (2048, 2048)
    assert weight_bytes(GRAPH_SHAPES["llama-3.2-1b"], eight) == 16 * (3072 + 2048 + 3 * 8192) * 2048 + 128_256 * 2048


def test_without_a_disassembler_it_says_where_one_is(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(issue_slots, "disassembler", lambda: None)
    assert issue_slots.main([]) == 2
    assert "comes with CUDA" in capsys.readouterr().err
