from sorel.files.checkpoints import *
