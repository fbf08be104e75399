r"""Units of physics behind a number, and other marks that no verdict may depend on."""

from __future__ import annotations

import pytest

from rllib_dapo.rewards.grading.grade import grade
from rllib_dapo.rewards.grading.units import canonical_unit


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" J", "J"), (r" \text{ J}", "J"), (r"\ \mathrm{J}", "J"), (" kJ", "kJ"), (" eV", "eV"),
        (" erg/s", "erg s^-1"), (" km s^{-1}", "km s^-1"), (" km/s", "km s^-1"),
        (r"\,\mathrm{kg\,m/s^2}", "kg m s^-2"), (r" N \cdot m", "N m"), (r" \mu m", "µm"),
        (" J/(kg K)", "J K^-1 kg^-1"), (" m/s/s", "m s^-2"), (r" \Omega", "Ω"),
        ("\\mathrm{m\\,s^{-1}}", "metre per second"), (" m/s", "metre per second"),
        # Variables, number words, times of day and powers are no units.
        (" x", None), (" m n", None), ("K", None), ("J", None), (" M", None), (" i", None),
        (" pm", None), (" thousand", None), (" u", None), ("^2", None), (" 1/s", None),
    ],
)  # fmt: skip
def test_units_of_physics(text: str, name: str | None) -> None:
    assert canonical_unit(text) == name


@pytest.mark.parametrize("unit", ["erg/s", r"\text{ erg/s}", r"\ \mathrm{erg\,s^{-1}}", ""])
@pytest.mark.parametrize("gold_unit", ["", r" \text{ erg/s}", r"~\mathrm{erg~s^{-1}}"])
def test_the_form_of_a_unit_does_not_matter(unit: str, gold_unit: str) -> None:
    gold = rf"4.5 \times 10^{{33}}{gold_unit}"
    assert grade(rf"Answer: $4.5\times10^{{33}}$ {unit}", gold).correct
    assert not grade(rf"Answer: $4.5\times10^{{32}}$ {unit}", gold).correct
    if unit and gold_unit:
        assert not grade(r"Answer: $4.5\times10^{33}$ J", gold).correct


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        ("±5", r"\pm 5", True), ("5, -5", "±5", True), ("5", "±5", False),
        ("∅", r"\emptyset", True), ("0", "∅", False), ("{1,2}∩{2,3}", "{2}", False),
        ("10:30 am", r"10:30 \text{ a.m.}", True), ("10:30 p.m.", "10:30 am", False),
        ("2", r"\boxed 2", True), ("3", r"\boxed 2", False), (r"\boxed 2", r"\boxed{2}", True),
        ("6x+0", "6x", False), ("0+2i", "2i", True),
    ],
)  # fmt: skip
def test_signs_boxes_and_zeros(answer: str, gold: str, correct: bool) -> None:
    assert grade(f"Answer: {answer}", gold).correct is correct


def test_the_rule_of_the_recipe_never_pays_for_nothing() -> None:
    assert not grade("Answer: $$9$$", "$$8$$", "strict").correct
