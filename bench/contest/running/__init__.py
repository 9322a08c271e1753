"""Runs a contender: starts it, observes it from outside, stops it, and judges its output."""
