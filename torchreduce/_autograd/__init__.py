"""Derivatives of the ops, by kind. Importing this registers them."""

from . import channels as channels
from . import norms as norms
from . import products as products
from . import reductions as reductions
from . import rowwise as rowwise
from . import scans as scans
from . import segments as segments
