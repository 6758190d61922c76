from sorel.estimators.model_selection import *
