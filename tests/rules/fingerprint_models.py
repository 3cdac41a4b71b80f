"""Pydantic models with fixed fingerprints."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Order(BaseModel):
    sku: str
    count: int = 1
    tags: set[str] = set()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int
