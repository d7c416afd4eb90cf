"""Segmentation in two stages: a timm encoder, a decoder with experts at every scale."""
