"""The methods of the race: vSGD in three granularities and its robust form, and five rivals."""

from pesky.online.methods.adagrad import AdaGrad
from pesky.online.methods.almeida import Almeida
from pesky.online.methods.amari import Amari
from pesky.online.methods.base import Beginning, Method
from pesky.online.methods.sgd import SGD
from pesky.online.methods.smd import SMD
from pesky.online.methods.vsgd import VSGD

__all__ = ["SGD", "SMD", "VSGD", "AdaGrad", "Almeida", "Amari", "Beginning", "Method"]
