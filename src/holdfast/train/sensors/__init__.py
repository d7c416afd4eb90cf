"""Sensor arrays: a masked auto-encoder, regression of several targets, and inpainting of dead channels."""
