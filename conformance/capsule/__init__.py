"""Failure capsules: one folder of at most 1 MB that shows a failure again, without the golden it is from."""

from conformance.capsule.pack import Packer
from conformance.capsule.replay import Capsule, is_capsule

__all__ = ["Capsule", "Packer", "is_capsule"]
