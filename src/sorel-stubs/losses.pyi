from sorel.problem.losses import *
