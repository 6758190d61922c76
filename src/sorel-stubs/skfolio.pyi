from sorel.estimators.skfolio import *
