from sorel.problem.penalties import *
