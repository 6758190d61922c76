from sorel.projection import *
