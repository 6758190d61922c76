from sorel.research.reproduce import *
