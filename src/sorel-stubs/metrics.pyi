from sorel.estimators.metrics import *
