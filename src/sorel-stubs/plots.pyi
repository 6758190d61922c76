from sorel.estimators.plots import *
