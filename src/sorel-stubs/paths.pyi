from sorel.estimators.paths import *
