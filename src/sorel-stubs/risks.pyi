from sorel.problem.risks import *
