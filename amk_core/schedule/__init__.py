"""Schedules: the interchange format, the validator and its certificate."""

from amk_core.schedule.certificate import Certificate
from amk_core.schedule.checker import check_certificate
from amk_core.schedule.ir import Schedule, ScheduleFormatError
from amk_core.schedule.validate import Finding, Verdict, validate

__all__ = ["Certificate", "Finding", "Schedule", "ScheduleFormatError", "Verdict", "check_certificate", "validate"]
