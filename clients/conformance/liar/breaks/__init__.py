"""The promises that the liar can break, each by what is seen of it: an op, a line, or a request on its way."""

from ..tools import BREAKS
from . import client, ends, worker

__all__ = ["BREAKS", "client", "ends", "worker"]
