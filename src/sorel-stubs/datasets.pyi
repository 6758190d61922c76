from sorel.research.datasets import *
