"""Single-step text environments: one episode is one problem and one completion."""

from __future__ import annotations
