"""Paged attention behind one signature."""

from paceline.exec.attention.interface import Attention, AttentionMetadata, LayerShape

__all__ = ["Attention", "AttentionMetadata", "LayerShape"]
