"""Single-step text environments: one episode is one problem and one answer."""

from __future__ import annotations
