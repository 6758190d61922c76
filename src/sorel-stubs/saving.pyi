from sorel.files.saving import *
