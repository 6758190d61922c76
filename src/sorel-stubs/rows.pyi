from sorel.engines.rows import *
